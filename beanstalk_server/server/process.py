"""Reads what `stats` shows of the server's process: hostname, CPU time, and so on; and the offset of the wall clock."""

from __future__ import annotations

import os
import resource
from time import monotonic_ns, time_ns

from beanstalk_server.version import PROTOCOL
from beanstalk_server.wire.server_info import ServerInfo


def this_process(max_job_size: int, now: int, compat: str = PROTOCOL) -> ServerInfo:
    """What stats reports about this process.

    Args:
        max_job_size: the largest body, in bytes.
        now: the moment of the start, in nanoseconds.
        compat: the version of beanstalkd that the server answers as.
    """
    node = os.uname()
    return ServerInfo(
        pid=os.getpid(),
        compat=compat,
        instance=os.urandom(8).hex(),
        hostname=node.nodename,
        os=node.version,
        platform=node.machine,
        max_job_size=max_job_size,
        started_at=now,
        clock_offset=clock_offset,
        cpu_times=cpu_times,
    )


def clock_offset() -> int:
    """The wall clock minus the server's clock, in nanoseconds.

    Should the process stand still between the two looks, that is too little: no moment is taken for past too early.
    """
    wall = time_ns()
    return wall - monotonic_ns()


def cpu_times() -> tuple[float, float]:
    """The seconds that this process has spent in user mode and in system mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
