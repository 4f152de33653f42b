"""Testcontainers: a server in a container of its own, for tests that have a container engine.

    from beanstalk_client.integrations.testcontainers import BeanstalkContainer

    with BeanstalkContainer() as server, server.get_client() as queue:
        queue.put("hello")

The image is that of packaging/container, under the name with which docs/testing.md builds it. An image of beanstalkd
works too: it must listen on 0.0.0.0. Tried by hand with podman 4.3 and both images, but not with Docker; the tests have
the real library and an imitation of an engine.
"""

from __future__ import annotations

from typing import Any

from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import WaitStrategy, WaitStrategyTarget

from beanstalk_client.blocking import Client

IMAGE = "beanstalk-server"
PORT = 11300


class BeanstalkContainer(DockerContainer):
    """A container with a server, on a port of the engine's choice."""

    def __init__(self, image: str = IMAGE, port: int = PORT, **kwargs: Any) -> None:
        """
        Args:
            image: its name, and its tag if that is not `latest`.
            port: where the server listens in the container.
            kwargs: those of DockerContainer, such as `command` for options of the server: with `command="-l 0.0.0.0"`
                it keeps nothing on disk.
        """
        super().__init__(image, **kwargs)
        self.port = port
        self.with_exposed_ports(port)
        self.waiting_for(Answering())

    def get_connection_url(self) -> str:
        """The server's address, as `Client`, `AsyncClient` and `Tasks` take it: beanstalk://localhost:32768."""
        return f"beanstalk://{self.get_container_host_ip()}:{self.get_exposed_port(self.port)}"

    def get_client(self, **kwargs: Any) -> Client[Any]:
        """A client of this server, with arguments of `Client`."""
        return Client(self.get_connection_url(), **kwargs)


class Answering(WaitStrategy):
    """Waits until the server answers a command: an engine accepts connections to its ports earlier."""

    def wait_until_ready(self, container: WaitStrategyTarget) -> None:
        assert isinstance(container, BeanstalkContainer)
        if not self._poll(lambda: _answers(container)):
            raise TimeoutError(f"{container.image} did not answer within {self._startup_timeout:.0f} seconds")


def _answers(container: BeanstalkContainer) -> bool:
    """True; a connection that fails is an error, after which the caller tries again."""
    with container.get_client(connect_timeout=5, timeout=5) as client:
        return bool(client.stats())
