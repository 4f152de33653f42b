"""Reads from Linux's /proc what a process uses: its CPU time, its memory, and how often it has slept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Cpu(NamedTuple):
    """CPU time that a process has used in all its threads, to the nanosecond if the kernel counts nanoseconds.

    The kernel counts the shares of user and system mode in clock ticks, so they are precise only for long periods.
    """

    total: float  # seconds
    user_ticks: int
    system_ticks: int

    def since(self, earlier: Cpu) -> Cpu:
        total, user, system = earlier
        return Cpu(self.total - total, self.user_ticks - user, self.system_ticks - system)

    @property
    def user(self) -> float:
        """Seconds in user mode."""
        return self.total * self.user_ticks / max(self.user_ticks + self.system_ticks, 1)

    @property
    def system(self) -> float:
        """Seconds in system mode."""
        return self.total - self.user


def cpu(pid: int, proc: Path = PROC) -> Cpu:
    """Its CPU time so far."""
    user, system = (int(ticks) for ticks in (proc / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[11:13])
    total = 0
    for thread in (proc / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            total += int(thread.read_text().split()[0])
    if not total:  # a kernel without these statistics
        return Cpu((user + system) / os.sysconf("SC_CLK_TCK"), user, system)
    return Cpu(total / 1e9, user, system)


def cpu_of_all(pids: Sequence[int]) -> Cpu:
    """The CPU time of several processes together."""
    spent = [cpu(pid) for pid in pids]
    return Cpu(
        sum(each.total for each in spent),
        sum(each.user_ticks for each in spent),
        sum(each.system_ticks for each in spent),
    )


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that it has started from its first thread, and that live."""
    return [int(each) for each in (proc / str(pid) / "task" / str(pid) / "children").read_text().split()]


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all that descend from it, from whichever of their threads, and live."""
    found = [pid]
    for each in found:
        for listed in (proc / str(each) / "task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                found += map(int, listed.read_text().split())
    return found


def cpu_of_family(pid: int, proc: Path = PROC) -> float:
    """The CPU time so far of a process and of all that descend from it, in seconds.

    Those that have ended are counted too, if their parents have waited for them.
    """
    total = 0.0
    for each in family(pid, proc):
        with contextlib.suppress(OSError):  # the process has ended
            ended = (proc / str(each) / "stat").read_text().rsplit(")", 1)[1].split()[13:15]
            total += cpu(each, proc).total + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    return total


@contextlib.contextmanager
def killed_after(seconds: float, child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a child of ours that is not done by then: what waits for its output reads the end of it."""
    timer = threading.Timer(seconds, child.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def resident(pid: int, proc: Path = PROC) -> int:
    """Bytes of memory in use."""
    return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(pid: int, proc: Path = PROC) -> int:
    """The most bytes of memory that it has used since its start."""
    status = (proc / str(pid) / "status").read_text()
    return int(status.split("\nVmHWM:")[1].split()[0]) * 1024


def switches(pid: int, proc: Path = PROC) -> int:
    """How often it has gone to sleep so far: an idle process does so after each time that it wakes up."""
    status = (proc / str(pid) / "status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
