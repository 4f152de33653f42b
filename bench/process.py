"""Reads from Linux's /proc what a process uses: its CPU time, its memory, and how often it has slept."""

from __future__ import annotations

import contextlib
import os
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
        return Cpu(*(now - before for now, before in zip(self, earlier, strict=True)))  # type: ignore[arg-type]

    @property
    def user(self) -> float:
        """Seconds in user mode."""
        return self.total * self.user_ticks / max(self.user_ticks + self.system_ticks, 1)


def _stat(pid: int, proc: Path) -> list[int]:
    """Clock ticks: user, system, and those of children that it has waited for."""
    return [int(ticks) for ticks in (proc / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[11:15]]


def _status(pid: int, name: str, proc: Path) -> int:
    return int((proc / str(pid) / "status").read_text().split(f"\n{name}:")[1].split()[0])


def cpu(pid: int, proc: Path = PROC) -> Cpu:
    """Its CPU time so far."""
    user, system = _stat(pid, proc)[:2]
    total = 0
    for thread in (proc / str(pid) / "task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            total += int(thread.read_text().split()[0])
    # Without these statistics, the kernel counts ticks alone.
    return Cpu(total / 1e9 if total else (user + system) / os.sysconf("SC_CLK_TCK"), user, system)


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The processes that it has started, from any of its threads, and that live."""
    found: list[int] = []
    for listed in (proc / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, listed.read_text().split())
    return found


def family(pid: int, proc: Path = PROC) -> list[int]:
    """A process and all that descend from it, and live."""
    found = [pid]
    for each in found:
        found += children(each, proc)
    return found


def cpu_of_family(pid: int, proc: Path = PROC) -> float:
    """The CPU time so far of a process and of all that descend from it, in seconds.

    Those that have ended are counted too, if their parents have waited for them.
    """
    total = 0.0
    for each in family(pid, proc):
        with contextlib.suppress(OSError):  # the process has ended
            total += cpu(each, proc).total + sum(_stat(each, proc)[2:]) / os.sysconf("SC_CLK_TCK")
    return total


def resident(pid: int, proc: Path = PROC) -> int:
    """Bytes of memory in use."""
    return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(pid: int, proc: Path = PROC) -> int:
    """The most bytes of memory that it has used since its start."""
    return _status(pid, "VmHWM", proc) * 1024


def switches(pid: int, proc: Path = PROC) -> int:
    """The number of times it has gone to sleep: an idle process does so after each time that it wakes up."""
    return _status(pid, "voluntary_ctxt_switches", proc)
