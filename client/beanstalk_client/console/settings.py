"""The settings of a console, from `beanstalk console` or `console(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from beanstalk_client.schedules.scheduler import GROUP

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings.

    Attributes:
        server: the server as people call it, without a token.
        login: each user signs in with a token of the queue.
        read_only: nothing can be changed.
        user_header: the header with the user's name that a proxy sets, in lower case; "" for none.
        trusted: the networks of that proxy.
        hosts: the names by which browsers may know the console, beside addresses and localhost.
        hsts: browsers must use TLS only for these names.
        base_path: what a proxy may leave before each path.
        schedules: the tubes of plans of schedulers.
        metrics: the URLs of the nodes' metrics, for percentiles and shards.
    """

    server: str = "127.0.0.1:11300"
    login: bool = False
    read_only: bool = False
    user_header: str = ""
    trusted: Sequence[str] = LOOPBACK
    hosts: Sequence[str] = ()
    hsts: bool = False
    base_path: str = ""
    schedules: Sequence[str] = (GROUP,)
    metrics: Sequence[str] = ()
