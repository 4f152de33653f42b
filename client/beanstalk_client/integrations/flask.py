"""An extension for Flask: a client for each thread that serves requests.

    from beanstalk_client.integrations.flask import Beanstalk

    beanstalk = Beanstalk()

    def create_app():
        app = Flask(__name__)
        app.config["BEANSTALK_URL"] = "beanstalk://127.0.0.1:11300"
        beanstalk.init_app(app)

    @app.post("/orders")
    def order():
        beanstalk.client.put("…")

`BEANSTALK_OPTIONS` are keywords of `Client`. A client connects with its first command, and is closed when its thread
ends. It needs Flask, which is no extra: who uses it has it.
"""

from __future__ import annotations

from flask import Flask, current_app

from beanstalk_client.address import read_addresses
from beanstalk_client.blocking import Client
from beanstalk_client.clients import ThreadClients

NAME = "beanstalk"
DEFAULT_URL = "beanstalk://127.0.0.1:11300"


class Beanstalk:
    """The extension.

    Args:
        app: what it is for; or call `init_app` later.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give an application clients.

        Raises:
            ValueError: BEANSTALK_URL is malformed.
        """
        read_addresses(app.config.setdefault("BEANSTALK_URL", DEFAULT_URL))
        app.config.setdefault("BEANSTALK_OPTIONS", {})
        app.extensions[NAME] = ThreadClients(
            lambda: Client(app.config["BEANSTALK_URL"], **app.config["BEANSTALK_OPTIONS"])
        )

    @property
    def client(self) -> Client[str]:
        """The client of this thread and of the current application.

        Raises:
            RuntimeError: there is no current application, or it has no `init_app` behind it.
        """
        if NAME not in current_app.extensions:
            raise RuntimeError(
                f"the extension is not initialized for the application {current_app.name}: call init_app"
            )
        clients: ThreadClients[str] = current_app.extensions[NAME]
        return clients.get()
