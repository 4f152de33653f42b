"""What all sessions of a server share: facts about the process, the dialect, the limit of a body, command counts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from beanstalk_server.events import Log
from beanstalk_server.version import PROTOCOL
from beanstalk_server.wire.authorization import any_tube
from beanstalk_server.wire.commands import COUNTERS, DIALECTS, LINKED
from beanstalk_server.wire.listings import ClientList
from beanstalk_server.wire.yaml import Rows


class Count:
    """A counter. In a list of plain numbers, each addition would make an object."""

    def __init__(self) -> None:
        self.value = 0


class ServerInfo:
    """The server, as its sessions see it.

    Args:
        pid: its process id.
        compat: the version of beanstalkd that it answers as: "1.12" or "1.13".
        instance: a random id of this start of the server.
        hostname, os, platform: as uname gives nodename, version and machine.
        max_job_size: the largest body, in bytes.
        started_at: the moment of the start, in nanoseconds of the clock that every command is given.
        clock_offset: returns the wall clock minus that clock, in nanoseconds.
        cpu_times: returns the seconds that the process has spent in user mode and in system mode.
    """

    def __init__(
        self,
        *,
        pid: int = 0,
        compat: str = PROTOCOL,
        instance: str = "",
        hostname: str = "",
        os: str = "",
        platform: str = "",
        max_job_size: int = 65535,
        started_at: int = 0,
        clock_offset: Callable[[], int] = lambda: 0,
        cpu_times: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        self.pid = pid
        self.version = compat  # as stats reports it: clients take it for that of a beanstalkd
        self.dialect = DIALECTS[compat]
        self.linked_dialect = LINKED[compat]  # of sessions that serve a place
        self.instance = instance
        self.hostname = hostname
        self.os = os
        self.platform = platform
        self.max_job_size = max_job_size
        self.started_at = started_at
        self.clock_offset = clock_offset
        self.cpu_times = cpu_times
        self.more: Callable[[], Rows] = _nothing  # returns further rows of stats
        self.clients: Callable[[], ClientList] = ClientList  # returns those who are served at the moment
        # whether a tube of this name would belong to the shard that it serves
        self.names_tube_of_shard: Callable[[str], bool] = any_tube
        # of what concerns the whole queue: it names the shard, if there are several
        self.log: Log = logging.getLogger("beanstalk_server")
        self.counts = [Count() for _ in range(COUNTERS)]  # how often each command has been given, by its counter
        self.forbidden = 0  # how many commands have been answered FORBIDDEN
        # is given client, user and reason of each command that is answered FORBIDDEN
        self.note_forbidden: Callable[[str, str, str], None] = _ignore


def _ignore(_client: str, _user: str, _reason: str) -> None:
    pass


def _nothing() -> Rows:
    return {}
