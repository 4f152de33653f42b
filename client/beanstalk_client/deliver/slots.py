"""Limits concurrent requests: a total, a limit for each host, and a limit for the jobs that wait for a slot.

A job whose host is at its limit waits here for a slot. One host may have a quarter of the waiting places, so that the
jobs of a slow host do not fill them all. A further job is put off: it goes back to the queue, with a delay for as long
as the host will need for those before it. So it comes back about once, and makes room for the jobs behind it.

Time is an argument.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SHARE: Final = 4
"""One host may have the whole waiting room divided by this."""

SHORTEST: Final = 0.05
LONGEST: Final = 300.0
"""Bounds of how long a job is put off, in seconds: a host may be quicker than it was."""

WEIGHT: Final = 0.2
"""Of the last request in the average duration of those to a host."""

MOST_IDLE_HOSTS: Final = 1000
"""Hosts that are remembered, with how long their requests took."""

SHORTEST_STEP: Final = 0.0005
"""Seconds between two jobs of a host that come back, at least: it is work to put them off once more."""


class PutOff(Exception):  # noqa: N818 nothing is wrong
    """The job has no slot for this long, in seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__(delay)
        self.delay = delay


class Stopped(Exception):  # noqa: N818 nothing is wrong
    """`stop` was called: no job gets a slot."""


class _Host:
    def __init__(self, now: float) -> None:
        self.average = 0.0  # seconds of a request; 0: none has ended yet
        self.since = now  # when its first request began
        self.busy = 0  # requests on their way, and those that wait for nothing but one of `at_once`
        self.backlog = 0.0  # jobs that were put off and should not have come back since
        self.looked_at = now  # when that was so
        self.waiting: deque[asyncio.Future[None]] = deque()


class DeliverySlots:
    """Gives slots to jobs.

    Attributes:
        at_once: requests at once.
        per_host: requests at once to one host.
        waiting_room: jobs that may wait because their host has as many requests as it may.
        waiting: how many do.
        busy: requests at present.
    """

    def __init__(self, at_once: int, per_host: int, waiting_room: int) -> None:
        self.at_once: int = at_once
        self.per_host: int = per_host
        self.waiting_room: int = waiting_room
        self.waiting: int = 0
        self.busy: int = 0
        self._ready: deque[tuple[_Host, asyncio.Future[None]]] = (
            deque()
        )  # their host has room, but there are at_once requests
        self._hosts: dict[str, _Host] = {}
        self._most_hosts = MOST_IDLE_HOSTS  # then those that are idle are forgotten
        self._stopped = False

    @property
    def places(self) -> int:
        """How many jobs to take from the queue at most: all that may be sent, and all that may wait."""
        return self.at_once + self.waiting_room

    async def begin(self, name: str, now: float) -> None:
        """Wait for a slot. When this returns, the job has one until `end` is called.

        Args:
            name: of its host.
            now: in seconds, on the clock of `end`.

        Raises:
            PutOff: not before some time.
            Stopped: `stop` was called.
        """
        if self._stopped:
            raise Stopped
        host = self._hosts.get(name)
        if host is None:
            self._forget(now)
            host = self._hosts[name] = _Host(now)
        if host.busy < self.per_host:
            host.busy += 1
            if self.busy < self.at_once:
                self.busy += 1
                return
            slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ready.append((host, slot))
        else:
            if self.waiting >= self.waiting_room or len(host.waiting) >= max(1, self.waiting_room // SHARE):
                raise PutOff(self._put_off(host, now))
            slot = asyncio.get_running_loop().create_future()
            host.waiting.append(slot)
            self.waiting += 1
        try:
            await slot
        except asyncio.CancelledError:
            self._give_up(host, slot)
            raise

    def end(self, name: str, lasted: float) -> None:
        """A request has ended that lasted this many seconds."""
        host = self._hosts[name]
        host.average += (lasted - host.average) * (WEIGHT if host.average else 1.0)
        self.busy -= 1
        self._free(host)

    def stop(self) -> None:
        """Give no more slots: jobs that wait get Stopped."""
        self._stopped = True
        for host, slot in self._ready:
            host.busy -= 1
            _tell_stopped(slot)
        self._ready.clear()
        for host in self._hosts.values():
            for slot in host.waiting:
                _tell_stopped(slot)
            host.waiting.clear()
        self.waiting = 0

    def _put_off(self, host: _Host, now: float) -> float:
        """For how long a job of a host is put off: until those before it have had a slot.

        While the host has answered nothing, that time is unknown: then for as long as the host has been silent.
        """
        step = self._step(host)
        passed = now - host.looked_at
        silent = 0.0 if host.average else max(now - host.since, SHORTEST)
        host.backlog = max(0.0, host.backlog - (host.backlog * passed / silent if silent else passed / step)) + 1
        host.looked_at = now
        return min(max((len(host.waiting) + host.backlog) * step, silent, SHORTEST), LONGEST)

    def _step(self, host: _Host) -> float:
        """Seconds between two slots of a host."""
        return max(host.average / self.per_host, SHORTEST_STEP)

    def _free(self, host: _Host) -> None:
        """A host has room for one request more."""
        host.busy -= 1
        self._promote(host)
        while self._ready and self.busy < self.at_once:
            its_host, slot = self._ready.popleft()
            if slot.done():  # cancelled, and its job has not run since
                its_host.busy -= 1
                self._promote(its_host)
            else:
                self.busy += 1
                slot.set_result(None)

    def _promote(self, host: _Host) -> None:
        """Those that wait for a host which has room wait for nothing but one of `at_once`."""
        while host.waiting and host.busy < self.per_host:
            slot = host.waiting.popleft()
            self.waiting -= 1
            if not slot.done():
                host.busy += 1
                self._ready.append((host, slot))

    def _give_up(self, host: _Host, slot: asyncio.Future[None]) -> None:
        """A job was cancelled while it waited."""
        if slot.cancelled():
            if slot in host.waiting:
                host.waiting.remove(slot)
                self.waiting -= 1
            elif (host, slot) in self._ready:
                self._ready.remove((host, slot))
                self._free(host)
        elif slot.exception() is None:  # it had got its slot
            self.busy -= 1
            self._free(host)

    def _forget(self, now: float) -> None:
        """Forget hosts without requests when there are many, so that they do not take all memory in time."""
        if len(self._hosts) < self._most_hosts:
            return
        self._hosts = {
            name: host
            for name, host in self._hosts.items()
            if host.busy or host.waiting or now < host.looked_at + host.backlog * self._step(host)
        }
        self._most_hosts = max(MOST_IDLE_HOSTS, 2 * len(self._hosts))


def _tell_stopped(slot: asyncio.Future[None]) -> None:
    if not slot.done():
        slot.set_exception(Stopped())
