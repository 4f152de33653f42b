"""Jobs that a consumer holds while it does something else: reserved over several connections, touched by a thread.

A connection that waits for a job can say nothing meanwhile: what it sends is read when its reserve has been answered.
And only the connection that has reserved a job can touch it, or give it back. So each connection, a *slot*, does one or
the other:

    it holds jobs    it asks for more, but never waits for them: touches and deletes are done at once
    it holds none    it may wait; one of all slots does at any time, if there is room for another job

Where there are as many slots as there may be, and all of them hold jobs, one of them waits for BORROWED seconds at a
time: so much later it may delete what has been done meanwhile.

The consumer's thread asks, receives, takes, and ends each job; none of that waits for the server.
What it holds is touched from another thread, because the consumer may be blocked by what it does: a callback, or a task
in Celery's solo pool. If it is, that thread reads the replies as well.

This is not `beanstalk_client.consumer`, for two reasons. That one runs in an event loop of asyncio, of which a thread
of the system has one: with Celery's gevent or eventlet pools, a loop beside kombu's would be a greenlet of the same
thread, and hold up all others. And it goes on after a loss; kombu wants an error then, connects anew, and expects all
that was not acknowledged to come again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from beanstalk_client.commands import DEFAULT_PRIORITY, DEFAULT_TUBE, Command, make
from beanstalk_client.connection import Connection, abandoned_in_forks
from beanstalk_client.errors import (
    ConnectionLostError,
    DeadlineSoonError,
    Error,
    ForbiddenError,
    NoAnswerError,
    NotFoundError,
    TimedOutError,
)
from beanstalk_client.events import reason_of, tell
from beanstalk_client.job import Job
from beanstalk_client.protocol import Done

log: logging.Logger = logging.getLogger(__name__)

Connect = Callable[[], Connection]
"""Makes a connection that has been greeted, and watches the tube "default"."""

TOUCHES: Final = 3
"""How often a job is touched in its time-to-run: two touches may come late."""

BORROWED: Final = 1.0
"""The longest wait of a slot that holds jobs, in seconds. Whole, because beanstalkd knows whole seconds only."""

UNKNOWN_TTR: Final = 1.0
"""The least time-to-run, in seconds: that of a job as long as it is not known."""

UNWATCHED: Final = 0.5
"""Seconds: what has lain in the socket for longer may be reserved no more when it is read. It is touched first."""

PIPELINED: Final = 8
"""How many jobs are asked for at once of a server that does not know reserve-batch."""

LAST_WORDS: Final = 5.0
"""Seconds that closing waits for the replies to what was said before."""

YOUNG: Final = 1.0
"""Seconds: a connection that is lost so soon is not simply replaced by another one."""


@dataclasses.dataclass(eq=False, repr=False)
class Reservation:
    """A job that is reserved.

    Attributes:
        id: the server's number for it.
        tube, priority, ttr: as stats-job says; ttr in seconds.
        reserves: the number of times that it has been reserved; 1 for the first time.
        touch_at: when to touch it next.
        is_lost: the server does not count it as ours any more.
    """

    slot: JobConnection
    id: int
    body: bytes
    touch_at: float
    tube: str = ""
    priority: int = DEFAULT_PRIORITY
    ttr: float = UNKNOWN_TTR
    reserves: int = 1
    is_lost: bool = False


@dataclasses.dataclass(eq=False, repr=False)
class JobConnection:
    """A connection, and what it holds.

    Attributes:
        opened: when it was made.
        heard: when a reply came last, or was expected first.
        asked_at: when it was sent its last reserve.
        waits: the seconds for which the server was asked to wait.
        tubes: what it watches once the server has read all it was sent.
        answers: what to do with each result, in the order of the commands.
        held: its reservations by job id.
        touching: the number of touches without a reply.
    """

    connection: Connection
    opened: float
    heard: float
    asked_at: float
    waits: float = 0.0
    tubes: tuple[str, ...] = (DEFAULT_TUBE,)
    answers: deque[Callable[[Any], None] | None] = dataclasses.field(default_factory=deque)
    held: dict[int, Reservation] = dataclasses.field(default_factory=dict)
    touching: int = 0

    def fileno(self) -> int:
        return self.connection.fileno()


class Reservations:
    """The jobs that one consumer has reserved, and the connections that hold them.

    Args:
        connect: makes a connection.
        batches: the server knows reserve-batch, give-back, and fractions of seconds.
        most: how many connections there may be.
        patience: seconds that the server may be silent beyond what it was asked to wait.
        clock: monotonic seconds.

    Attributes:
        ready: what has been reserved, and the consumer has not taken yet.
        forget: called with each slot before its socket is closed.
        slots: the connections, whose sockets are to be watched.

    Raises:
        OSError, ConnectionLostError: from each method: the server cannot be reached, or a connection that holds jobs
            is lost.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        batches: bool = True,
        most: int = 10,
        patience: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ready: deque[Reservation] = deque()
        self.forget: Callable[[JobConnection], None] = lambda _: None  # no event loop watches them
        self._connect = connect
        self._batches = batches
        self._most = most
        self._patience = patience
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self.slots: list[JobConnection] = []
        self._tubes: tuple[str, ...] = ()
        self._asking: JobConnection | None = None  # which has a reserve without a reply
        self._replies = 0  # how many replies to its reserves are to come
        self._coming = 0  # reservations of which only the id is known
        self._is_dry = False  # nothing was ready when it was last asked for
        self._watched_at = clock()  # when the consumer last looked for replies
        self._failure: Exception | None = None  # met by the other thread
        self._keeper: threading.Thread | None = None
        self._wakes_at = 0.0  # when the keeper will look next
        self.is_closed: bool = False
        _all.add(self)

    @property
    def outstanding(self) -> int:
        """How many jobs have been reserved, or are about to be described, and were not taken yet."""
        return len(self.ready) + self._coming

    @property
    def is_asking(self) -> bool:
        """Whether a reserve, or a description of what it has got, has no reply yet."""
        return self._asking is not None or self._coming > 0

    def watch(self, tubes: Iterable[str]) -> None:
        """Reserve from these tubes from now on. What waits for jobs of others is hung up."""
        with self._lock:
            if self.is_closed:
                return
            self._tubes = tuple(dict.fromkeys(tubes))
            self._is_dry = False
            slot = self._asking
            if slot is not None and slot.waits and slot.tubes != self._tubes:
                if slot.held:
                    return  # it waits for a second at most
                self._drop(slot)
            for held in [held for held in self.ready if held.tube not in self._tubes]:
                self.ready.remove(held)
                self._give_back(held)

    def ask(self, limit: int, wait: float) -> None:
        """Ask for at most this many jobs, if nothing has been asked for yet; send what could not be sent before.

        Args:
            wait: seconds that the server shall wait for a job, if there is a slot that may wait.
        """
        with self._lock:
            self._check()
            for slot in list(self.slots):
                self._attempt(slot, self._flush)
            if limit < 1 or not self._tubes or self._asking is not None:
                return
            holding = [slot for slot in self.slots if slot.held]
            if holding and not self._is_dry:
                self._reserve(max(holding, key=_jobs_held), limit, 0)
                return
            idle = next((slot for slot in self.slots if not slot.held), None)
            if idle is None and len(self.slots) < self._most:
                idle = self._open()
            if idle is not None:
                self._reserve(idle, limit, wait)
            elif holding:
                least = min(holding, key=_jobs_held)
                short = min(held.ttr for held in least.held.values()) / (2 * TOUCHES)
                self._reserve(least, limit, min(wait, BORROWED, short if self._batches else int(short)))

    def stop_waiting(self) -> None:
        """Close the connection that still waits for long: its jobs would not be read."""
        with self._lock:
            slot = self._asking
            if slot is not None and not slot.held and slot.asked_at + slot.waits - self._clock() > UNWATCHED:
                self._drop(slot)

    def receive(self, slot: JobConnection) -> None:
        """Read what has come from a slot."""
        with self._lock:
            self._check()
            self._attempt(slot, self._receive)
            self._watched_at = self._clock()

    def receive_all(self) -> None:
        """Read what has come from any slot."""
        with self._lock:
            for slot in list(self.slots):
                self.receive(slot)

    def take(self) -> Reservation | None:
        """The next job that has been reserved."""
        with self._lock:
            return self.ready.popleft() if self.ready else None

    def get(self, tube: str, timeout: float) -> Reservation | None:
        """Reserve a job of this tube if one is ready; wait for the reply only.

        Raises:
            NoAnswerError: it takes longer than `timeout` seconds.
        """
        with self._lock:
            self._check()
            slot = next((slot for slot in self.slots if not slot.waits), None) or self._open()
            got: list[Reservation | None] = []
            self._watch(slot, (tube,))
            self._send(slot, make.reserve(0), lambda result: self._got_one(slot, result, got))
            self._attempt(slot, lambda slot: self._await(slot, lambda _: bool(got), self._clock() + timeout))
            if not got:  # the connection is lost, and nothing but time with it
                raise ConnectionLostError("connection lost")
            return got[0]

    def delete(self, held: Reservation) -> None:
        """The job is done. If it is not ours any more it is deleted all the same, unless another consumer has it."""
        with self._lock:
            self._end(held, make.delete(held.id))

    def release(self, held: Reservation, delay: float = 0) -> None:
        """Release the job with its old priority, to be ready in `delay` seconds."""
        with self._lock:
            if not held.is_lost:
                self._end(held, make.release(held.id, held.priority, delay))

    def give_back(self, held: Reservation) -> None:
        """Give the job back, as nothing has been done with it."""
        with self._lock:
            if not held.is_lost:
                self._give_back(held)

    def bury(self, held: Reservation) -> None:
        """Bury the job."""
        with self._lock:
            if not held.is_lost:
                self._end(held, make.bury(held.id, held.priority))

    def keep(self) -> float | None:
        """Touch what is due to be touched; return in how many seconds something will be, or None.

        Called by the thread, at the latest when it has said so.
        """
        with self._lock:
            if self.is_closed or self._failure is not None:
                return None
            now = self._clock()
            if any(slot.touching for slot in self.slots):  # the consumer has not read for a whole round: it is blocked
                for slot in list(self.slots):
                    self._attempt(slot, self._receive)
            for slot in list(self.slots):
                self._attempt(slot, lambda slot: self._touch(slot, now))
            due = [held.touch_at for slot in self.slots for held in slot.held.values()]
            return max(0.0, min(due) - now) if due else None

    def close(self) -> None:
        """Say what is still to be said, and hang up. What the consumer has not taken is given back; the server releases
        what it has taken."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            deadline = self._clock() + LAST_WORDS
            for slot in list(self.slots):
                if self._failure is None and (slot is not self._asking or slot.held):
                    try:
                        for held in [held for held in self.ready if held.slot is slot]:
                            self._give_back(held)
                        if slot.connection.protocol.pending:  # to close earlier could lose commands on their way
                            self._await(slot, _is_answered, deadline)
                    except (OSError, Error) as error:
                        log.debug("closing: %s", error)
                if slot in self.slots:
                    self._remove(slot)
            self._asking = None
            self.ready.clear()
            self._changed.set()

    def _abandon(self) -> None:
        """In a process that was forked: the connections are the parent's. Close the descriptors, and say nothing."""
        self.is_closed = True
        self._lock = threading.RLock()  # which a thread that is not here any more may have held
        self._changed = threading.Event()
        self._keeper = None
        for slot in self.slots:
            slot.connection.abandon()
        self.slots = []
        self.ready.clear()

    # What follows is called with the lock.

    def _check(self) -> None:
        if self.is_closed:
            raise ConnectionLostError("the channel is closed")
        if self._failure is not None:
            raise self._failure
        for slot in [slot for slot in self.slots if self._is_silent(slot)]:
            self._attempt(slot, self._receive)  # it may be that no one has read
            if self._is_silent(slot) and slot in self.slots:
                self._lose(slot, NoAnswerError("the server does not answer"))

    def _is_silent(self, slot: JobConnection) -> bool:
        return bool(slot.connection.protocol.pending) and self._clock() - slot.heard > slot.waits + self._patience

    def _open(self) -> JobConnection:
        connection, now = self._connect(), self._clock()
        connection.be_nonblocking()
        slot = JobConnection(connection, now, now, now)
        self.slots.append(slot)
        return slot

    def _watch(self, slot: JobConnection, tubes: tuple[str, ...]) -> None:
        for tube in tubes:
            if tube not in slot.tubes:
                self._send(slot, make.watch(tube))
        for tube in slot.tubes:
            if tube not in tubes:
                self._send(slot, make.ignore(tube))
        slot.tubes = tubes

    def _reserve(self, slot: JobConnection, limit: int, wait: float) -> None:
        self._watch(slot, self._tubes)
        self._asking = slot
        slot.waits = wait
        slot.asked_at = self._clock()
        if self._batches:
            self._replies = 1
            self._send(slot, make.reserve_batch(limit, wait), lambda result: self._reserved(slot, result))
        else:
            whole = int(wait)
            self._replies = 1 if whole else min(limit, PIPELINED)
            for _ in range(self._replies):
                self._send(slot, make.reserve(whole), lambda result: self._reserved(slot, result))
        self._attempt(slot, self._flush)

    def _reserved(self, slot: JobConnection, result: Any) -> None:
        self._replies -= 1
        if not self._replies:
            self._asking = None
            slot.waits = 0.0
        if isinstance(result, (TimedOutError, DeadlineSoonError)):
            self._is_dry = True
            if isinstance(result, DeadlineSoonError):
                for held in slot.held.values():
                    held.touch_at = 0.0
                self._touch(slot, self._clock())
        elif isinstance(result, Exception):
            raise result
        else:
            self._is_dry = False
            for job in result if isinstance(result, list) else [result]:
                self._describe(slot, job)

    def _describe(self, slot: JobConnection, job: Job[bytes], into: list[Reservation | None] | None = None) -> None:
        """Ask what is to be known of a job before it can be taken."""
        held = Reservation(slot, job.id, job.body, self._clock() + UNKNOWN_TTR / TOUCHES)
        slot.held[job.id] = held
        if self._clock() - self._watched_at > UNWATCHED:
            self._send_touch(slot, held)
        if into is None:
            self._coming += 1
        self._send(slot, make.stats_job(job.id), lambda result: self._described(held, result, into))

    def _described(self, held: Reservation, result: Any, into: list[Reservation | None] | None) -> None:
        if into is None:
            self._coming -= 1
        if isinstance(result, NotFoundError) or held.is_lost:
            if not held.is_lost:  # or who asks has no right to know
                self._send(held.slot, make.touch(held.id), _refuse_secrets)
            self._forget(held)
            if into is not None:
                into.append(None)
            return
        if isinstance(result, Exception):
            raise result
        held.tube = str(result["tube"])
        held.priority = int(result["pri"])
        held.ttr = float(max(1, int(result["ttr"])))
        held.reserves = int(result["reserves"])
        held.touch_at = self._clock() + held.ttr / TOUCHES
        if into is not None:
            into.append(held)
        elif held.tube in self._tubes:
            self.ready.append(held)
        else:  # the consumer has lost its interest meanwhile
            self._give_back(held)
        self._wake_keeper(held.touch_at)

    def _give_back(self, held: Reservation) -> None:
        self._end(held, make.give_back(held.id) if self._batches else make.release(held.id, held.priority))

    def _await(self, slot: JobConnection, is_over: Callable[[JobConnection], bool], deadline: float) -> None:
        """Send what is left, and read replies until a condition is met."""
        self._flush(slot)
        while not is_over(slot):
            left = deadline - self._clock()
            if left <= 0:
                raise NoAnswerError("the server does not answer", maybe_done=True)
            slot.connection.wait(left)
            self._receive(slot)

    def _got_one(self, slot: JobConnection, result: Any, got: list[Reservation | None]) -> None:
        if isinstance(result, (TimedOutError, DeadlineSoonError)):
            got.append(None)
        elif isinstance(result, Exception):
            raise result
        else:
            self._describe(slot, result, got)
            self._flush(slot)

    def _touch(self, slot: JobConnection, now: float) -> None:
        for held in slot.held.values():
            if held.touch_at <= now:
                self._send_touch(slot, held)
        self._flush(slot)

    def _send_touch(self, slot: JobConnection, held: Reservation) -> None:
        held.touch_at = self._clock() + held.ttr / TOUCHES
        slot.touching += 1
        self._send(slot, make.touch(held.id), lambda result: self._touched(held, result))

    def _touched(self, held: Reservation, result: Any) -> None:
        held.slot.touching -= 1
        if isinstance(result, NotFoundError):
            if held.slot.held.get(held.id) is held:
                message = f"job {held.id} of tube {held.tube} is no longer reserved and may run twice"
                tell(log, logging.WARNING, "reservation-lost", message, job=held.id, tube=held.tube)
            self._forget(held)
            with contextlib.suppress(ValueError):
                self.ready.remove(held)
        elif isinstance(result, Exception):
            raise result

    def _end(self, held: Reservation, command: Command[None]) -> None:
        if held.slot not in self.slots:
            raise ConnectionLostError(f"job {held.id} was reserved on a connection that was lost")
        self._send(held.slot, command, lambda result: self._ended(held, command, result))
        self._forget(held, lost=False)
        self._attempt(held.slot, self._flush)

    def _ended(self, held: Reservation, command: Command[None], result: Any) -> None:
        if isinstance(result, NotFoundError):
            message = f"job {held.id} of tube {held.tube}: {command.name} came too late ({reason_of(result)})"
            tell(log, logging.WARNING, "outcome-lost", message, job=held.id, tube=held.tube)
        elif isinstance(result, Exception):
            message = f"job {held.id} of tube {held.tube}: {command.name} was refused ({reason_of(result)})"
            tell(log, logging.ERROR, "outcome-refused", message, job=held.id, tube=held.tube)

    def _forget(self, held: Reservation, lost: bool = True) -> None:
        held.is_lost = held.is_lost or lost
        if held.slot.held.get(held.id) is held:
            del held.slot.held[held.id]

    def _send(self, slot: JobConnection, command: Command[Any], answer: Callable[[Any], None] | None = None) -> None:
        if not slot.connection.protocol.pending:
            slot.heard = self._clock()
        slot.connection.say(command)
        slot.answers.append(answer)

    def _flush(self, slot: JobConnection) -> None:
        self._answer(slot, slot.connection.flush())

    def _receive(self, slot: JobConnection) -> None:
        """Read all that has come; do what the replies ask for; send what follows from them."""
        self._answer(slot, slot.connection.take())
        self._flush(slot)

    def _answer(self, slot: JobConnection, done: list[Done]) -> None:
        if done:
            slot.heard = self._clock()
        for command, result in done:
            answer = slot.answers.popleft()
            if isinstance(result, ConnectionLostError):
                raise result
            if answer is not None:
                answer(result)
            elif isinstance(result, ForbiddenError):
                raise ForbiddenError(f"a consumer needs the right to consume from its tubes ({command.line})")
            elif isinstance(result, Exception):
                raise ConnectionLostError(f"{command.line}: {reason_of(result)}")
        if slot.connection.is_lost:
            raise ConnectionLostError("the server closed the connection", maybe_done=True)

    def _attempt(self, slot: JobConnection, do: Callable[[JobConnection], None]) -> None:
        """Do something with a slot, which may be lost by it."""
        if slot not in self.slots:
            return
        try:
            do(slot)
        except (OSError, Error) as error:
            self._lose(slot, error)

    def _lose(self, slot: JobConnection, error: Exception) -> None:
        """A connection is lost. If nothing but time is lost with it, there will be another one."""
        harmless = not slot.held and self._clock() - slot.opened > YOUNG and isinstance(error, OSError)
        self._drop(slot)
        if not harmless:
            self._failure = error
            raise error

    def _drop(self, slot: JobConnection) -> None:
        if slot is self._asking:
            self._asking = None
            self._replies = 0
        for held in slot.held.values():
            held.is_lost = True
            self._coming -= not held.tube
            with contextlib.suppress(ValueError):
                self.ready.remove(held)
        slot.held.clear()
        self._remove(slot)

    def _remove(self, slot: JobConnection) -> None:
        self.forget(slot)
        self.slots.remove(slot)
        slot.connection.close()

    # The thread that touches.

    def _wake_keeper(self, due: float) -> None:
        if self._keeper is None:
            self._wakes_at = due
            self._keeper = threading.Thread(
                target=_keep, args=(weakref.ref(self), self._changed), name="beanstalk-touch", daemon=True
            )
            self._keeper.start()
        elif due < self._wakes_at:
            self._changed.set()

    def _keep_on(self) -> float | None:
        """Do what is due, and return how long to wait for more; None to end."""
        with self._lock:
            self._changed.clear()
            try:
                wait = self.keep()
            except (OSError, Error) as error:
                log.debug("touching: %s", error)
                wait = None  # the consumer's thread meets the failure
            if wait is None:
                self._keeper = None
            else:
                self._wakes_at = self._clock() + wait
            return wait


def _keep(of: weakref.ref[Reservations], changed: threading.Event) -> None:
    """Touch jobs until none is left, or the reservations are."""
    while True:
        reservations = of()
        wait = None if reservations is None else reservations._keep_on()
        del reservations
        if wait is None:
            return
        changed.wait(wait)


def _refuse_secrets(touched: Any) -> None:
    """Raise an error if a job that was said not to exist is there."""
    if touched is None:
        raise ForbiddenError("a consumer needs the right to inspect the tubes that it consumes from")


def _is_answered(slot: JobConnection) -> bool:
    """Whether all commands have their replies."""
    return not (slot.connection.unsent or slot.connection.protocol.pending)


def _jobs_held(slot: JobConnection) -> int:
    return len(slot.held)


_all: weakref.WeakSet[Reservations] = abandoned_in_forks()
