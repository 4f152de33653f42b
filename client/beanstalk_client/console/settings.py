"""The settings of a console, from `beanstalk console` or `console(...)`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from beanstalk_client.schedules.scheduler import GROUP

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `console(...)` that pages need.

    Attributes:
        server: the server as people call it, without a token.
        user_header: in lower case.
        base_path: with a slash before it; "" for none.
    """

    server: str = "127.0.0.1:11300"
    tls: bool = False
    login: bool = False
    read_only: bool = False
    user_header: str = ""
    trusted: Sequence[str] = LOOPBACK
    hosts: Sequence[str] = ()
    hsts: bool = False
    base_path: str = ""
    schedules: Sequence[str] = (GROUP,)
    metrics: Sequence[str] = ()

    @property
    def command(self) -> str:
        """The beginning of a command line that reaches the server."""
        return f"beanstalk --server {shlex.quote(self.server.split(', ')[0])}{' --tls' if self.tls else ''}"
