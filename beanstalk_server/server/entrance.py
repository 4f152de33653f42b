"""What a listener asks of the clients that connect to it, and what it gives them.

Must never know sockets, or what clients say.
"""

from __future__ import annotations

from beanstalk_server.access.user import User
from beanstalk_server.config import ListenerConfig


class Entrance:
    """One listener's way of knowing users. A reload of the settings changes it in place, under its connections."""

    __slots__ = ("user",)

    def __init__(self) -> None:
        self.user: User | None = None  # whoever comes in here is this user


def ways_of(config: ListenerConfig) -> str:
    """How a listener knows its users, for the log: "" where everybody may come in, and do everything."""
    ways = ["PROXY"] if config.proxy_protocol else []
    if config.tls_cert:
        ways.append("TLS with clients' certificates" if config.tls_client_ca else "TLS")
    if config.auth != "none":
        ways.append(config.auth)
    if config.user:
        ways.append(f"user {config.user}")
    return ", ".join(ways)
