"""Reserves jobs, runs a handler for each, and reports the outcome: the engine under workers.

The protocol answers a connection's commands in order, so one that waits for a job can touch and delete nothing. Hence

    slots        `at_once` of them: a job takes one from its reservation until its handler is done
    links        connections, each with a coroutine that repeats: say what has become of jobs, ask for as many as there
                 are free slots, let those that come run, all at once
    the waiter   the one link that waits for jobs; it has none in hand

A link with jobs in hand asks too, but does not wait. As long as there is more to do than slots, two links take turns,
each for half of the slots: the server does its part for one while the jobs of the other run, and five empty jobs cost
one write and one read. Once one of them has got less than it asked for, the slots that are left go to one link, which
waits. Each link but the waiter has a job in hand or nothing to do, so there are never more than `at_once` + 1.

A job runs on when its connection is lost. Then its reservation is gone, and it is ready again on the server:

    it is taken back   by reserve-job over the next connection, if no worker has had it in between
    it comes back      before that, to this consumer: its run goes on, with the new reservation
    its run ends       before either: it is deleted; before a release or a bury, it is taken back

All this needs certainty that it is the same job. It is if the server has the same `id` in `stats`: ids of jobs mean the
same for as long as a server runs. If the `id` is another one, or unknown, the server may have given the job's id to
another job. Then nothing is said of the former job. What has come with its id runs when the run in hand has ended, so
that no job runs twice at once here; if its body is another one, it runs at once.

A job that comes back with another body was replaced. It runs when the run in hand has ended, whose outcome is not sent.

What has come back is the *reissue* of what is in hand with its id, until one of these cases is known. Until then
nothing more is said of either.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from beanstalk_client.commands import (
    FRACTIONS,
    IDENTITY,
    MAX_PRIORITY,
    MAX_SECONDS,
    Duration,
    function_of,
    make,
    seconds,
    seconds_of,
    sequence_of,
    within,
)
from beanstalk_client.errors import (
    BeanstalkdError,
    ConnectionLostError,
    DeadlineSoonError,
    Error,
    ForbiddenError,
    NotFoundError,
    ReservationLostError,
    TimedOutError,
    TooLateError,
    UnauthorizedError,
    UnsupportedError,
)
from beanstalk_client.events import reason_of, tell

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient
    from beanstalk_client.commands import Reply
    from beanstalk_client.job import Job
    from beanstalk_client.pipeline import AsyncPipeline

AT_ONCE = 10
"""Maximum number of running jobs, by default."""

WAIT = 30.0
"""Seconds that the waiter waits before it asks again: a server that is silent for longer than that is lost."""

LOOK = 0.25
"""Seconds between two looks at which jobs must be touched: a third of the protocol's least time to run, and less."""

IDLE = 0.1
"""Likewise, for a consumer that says when it is idle."""

SOON = 0.01
"""Seconds until a second look at what will be there in a moment."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two attempts after a loss: doubled with each, and shortened by up to a half at random."""

NEVER = float("inf")

LOST = "its reservation was lost"

LAST_ATTEMPTS = 10.0
"""Seconds for which a stopped consumer goes on trying to report outcomes to the server."""

FAULT_DELAY = 60.0
"""Seconds that a job waits whose handler has raised an exception, which none should."""

T = TypeVar("T")

log: logging.Logger = logging.getLogger("beanstalk_client.consumer")


def start(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
    """Start an asyncio task that `asyncio.all_tasks` does not list: a job that cancels them all ends no program."""
    task = loop.create_task(coroutine)
    asyncio._unregister_task(task)
    return task


def is_last_attempt(found: Mapping[str, Any]) -> bool:
    """Whether the server itself buries a job, or moves it to a dead tube, when it fails next, by its `stats-job`."""
    return 0 < int(found.get("max-tries", 0)) <= int(found.get("tries", 0)) + 1


class Outcome:
    """What becomes of a job: DONE, GIVE_BACK, `Release` or `Bury`."""

    __slots__ = ()


class Done(Outcome):
    """The job is deleted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DONE"


DONE = Done()


class GiveBack(Outcome):
    """GIVE_BACK: the job is ready again, and no failure is counted. If the server has no give-back, it is released."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "GIVE_BACK"


GIVE_BACK = GiveBack()


class Release(Outcome):
    """The job is ready again.

    Attributes:
        delay: after this many seconds; "5m" and a timedelta are taken, too.
        priority: None for its own.

    Raises:
        TypeError, ValueError: the server would refuse the delay or the priority.
    """

    __slots__ = ("delay", "priority")

    def __init__(self, delay: Duration = 0.0, priority: int | None = None) -> None:
        seconds("delay", delay)  # which refuses a bad one
        self.delay: float = seconds_of(delay)
        self.priority: int | None = _checked_priority(priority)

    def __repr__(self) -> str:
        return f"Release(delay={self.delay!r}, priority={self.priority!r})"


class Bury(Outcome):
    """The job is set aside until a client kicks it.

    Attributes:
        priority: None for its own.

    Raises:
        TypeError, ValueError: the server would refuse the priority.
    """

    __slots__ = ("priority",)

    def __init__(self, priority: int | None = None) -> None:
        self.priority: int | None = _checked_priority(priority)

    def __repr__(self) -> str:
        return f"Bury(priority={self.priority!r})"


def _checked_priority(priority: int | None) -> int | None:
    return None if priority is None else int(within("priority", priority, MAX_PRIORITY))


class Delivery:
    """A job in hand.

    Attributes:
        job_id: its id.
        body: its body; after `save`, what was saved.
        is_called_off: the consumer has cancelled its handler. Any other CancelledError is a failure of the handler.
    """

    def __init__(self, link: _Link, job: Job[bytes], received: float) -> None:
        self.job_id: int = job.id
        self.body: bytes = job.body
        self.is_called_off: bool = False
        self._job = job
        self._link = link  # whose connection has it reserved, or had
        self._touch_at = received + LOOK
        self._found: dict[str, Any] | None = None  # its statistics, as asked for last
        self._reserves: int | None = None  # how often it has been reserved, this time included
        self._is_lost = False  # the server has said that it is not reserved by its connection any more
        self._regain: asyncio.Task[None] | None = None  # takes it back
        self._is_released = False  # its outcome is a release
        self._in_doubt = False  # the server has been told that it is done, and may have heard it
        self._task: asyncio.Task[None] | None = None
        self._reissue: Delivery | None = None  # with which its id has come again last, before it was settled
        self._kept: Outcome | None = None  # what has become of it, while it is not clear whose its reissue is
        self._invalid = False  # its id may mean another job now: nothing may be said of it any more
        self._saving: bytes | None = None  # the body that was last sent by `save`: the server may have it
        self._is_replaced = False  # by a put: it runs again, and the outcome of this run is not sent

    @property
    def tube(self) -> str:
        """The tube it has come from; "" if the consumer watches several, and `stats` has not been asked yet."""
        tubes = self._link.tubes
        if len(tubes) == 1:
            return tubes[0]
        return str(self._found["tube"]) if self._found else ""

    async def stats(self) -> dict[str, Any]:
        """What the server says of the job at this moment: `stats-job`.

        Raises:
            NotFoundError: it is not there any more.
            ConnectionLostError: the server is not reached.
        """
        if self._regain is not None:
            await asyncio.wait([self._regain])  # the number of its tries must be the one after the loss
        await self._link.client.connect()  # which waits for longer than a command
        self._note(await self._link.client.stats_job(self.job_id))
        assert self._found is not None
        return self._found

    async def touch(self) -> None:
        """Begin the job's time to run anew. The consumer does so by itself, at each third of it.

        Raises:
            NotFoundError: it is not ours any more. Its run may go on all the same.
            ConnectionLostError: the server is not reached.
        """
        await self._link.client.touch(self._job)

    async def save(self, body: bytes) -> None:
        """Give the job another body, for its next attempt. If the connection is lost, wait until the job is taken back.

        Raises:
            JobTooBigError: the body is larger than the server or the tube takes.
            TooLateError: the job was replaced meanwhile, and runs again: nothing was saved.
            ReservationLostError: it is not ours any more. Its run may go on all the same.
            UnsupportedError: the server is a beanstalkd, which cannot do this.
        """
        while True:
            if self._is_replaced:
                raise TooLateError(f"job {self.job_id}: replaced, and runs again; nothing was saved")
            if self._touch_at == NEVER:
                raise ReservationLostError(f"job {self.job_id}: {LOST}; nothing was saved")
            if self._is_held():
                self._saving = body
                try:
                    await self._link.client.save(self._job, body)
                except TooLateError:
                    self._is_replaced = True
                    continue
                except (ConnectionLostError, NotFoundError) as error:
                    self._is_lost |= type(error) is NotFoundError
                    if self._touch_at != NEVER:
                        self._touch_at = 0.0  # at the next look, it is taken back
                else:
                    self.body = body
                    return
            await asyncio.sleep(LOOK)

    def _has(self, body: bytes) -> bool:
        """Whether this may be its body at the server."""
        return body in (self.body, self._saving)

    def _note(self, found: dict[str, Any]) -> None:
        self._found = dict(found)
        if self._reserves is None:
            self._reserves = int(found["reserves"])

    def _call_off(self) -> None:
        """Cancel its handler, if that runs."""
        if self._task is not None:
            self.is_called_off = True
            self._task.cancel()

    def _is_held(self) -> bool:
        """Whether it is reserved by us, as far as is known."""
        return not self._is_lost and self._link.client.holds(self._job)


class Consumer:
    """Takes jobs from tubes and lets a handler run for each.

    Args:
        connect: makes a client that is not connected yet, for bodies that are bytes.
        tubes: from which jobs are taken; one at the least.
        handle: runs for each job, and returns what becomes of it. It should raise nothing.
        at_once: for how many jobs it runs at a time.
        last_attempts: seconds for which it goes on trying, once stopped, to say what has become of jobs.
        weights: of tubes, where `mode` serves them by weight.
        mode: how the tubes are served, as `reserve_mode` takes it; "": as the server does without being told.
        settled: called when the server has heard what became of a job, or never will: with the error then.
        idle: called each time no job has come for IDLE seconds while none was in hand.
        room: the number of further jobs that the handler could begin at once; no more are asked for. A handler whose
            job takes some of it does so before it waits for anything. `resume` must be called when there is room again.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncClient[bytes]],
        tubes: Sequence[str],
        handle: Callable[[Delivery], Awaitable[Outcome]],
        *,
        at_once: int = AT_ONCE,
        last_attempts: float = LAST_ATTEMPTS,
        weights: Mapping[str, int] | None = None,
        mode: str = "",
        settled: Callable[[Delivery, Outcome, Exception | None], None] | None = None,
        idle: Callable[[], None] | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        self._tubes: tuple[str, ...] = sequence_of(tubes, "tubes")
        if not self._tubes:
            raise ValueError("a consumer needs at least one tube")
        for tube in self._tubes:
            make.watch(tube)  # which refuses a bad one
        if mode:
            make.reserve_mode(mode)
        within("at_once", at_once, MAX_SECONDS, 1)
        seconds("last_attempts", last_attempts)
        self._connect: Callable[[], AsyncClient[bytes]] = function_of(connect, "connect")
        self._handle: Callable[[Delivery], Awaitable[Outcome]] = function_of(handle, "handle")
        self._at_once = at_once
        self._last_attempts = seconds_of(last_attempts)
        self._weights = dict(weights or {})
        self._mode = mode
        self._settled = settled
        self._idle = idle
        self._wait = IDLE if idle is not None else WAIT
        self._room = room
        self._fresh = 0  # jobs that have come, and whose handlers have not begun: `room` does not count them yet
        self._turn = (at_once + 1) // 2  # for how many jobs a link asks while there is more to do than slots
        self._running = 0  # slots that are taken by jobs
        self._asked = 0  # slots that the reserves under way may fill
        self._more = False  # the last reserve was given all that it had asked for
        self._links: list[_Link] = []
        self._waiter: _Link | None = None
        self._in_hand: dict[int, Delivery] = {}  # by id: until the server has heard what became of it
        self._stopping = False
        self._ended = False  # no handler is started any more
        self._stopped_at = 0.0
        self._failure: Error | None = None
        self._look: asyncio.TimerHandle | None = None
        self._touches: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop  # from `run` on
        self._lost = False  # the loss of the server has been logged, and its return has not

    @property
    def running(self) -> int:
        """For how many jobs the handler runs at present."""
        return self._running

    async def run(self) -> None:
        """Take jobs until `stop` is called, also beyond losses of the server; return when none is in hand any more.

        Raises:
            UnauthorizedError, ForbiddenError: the server does not let us do this. No job is in hand any more.
        """
        self._loop = asyncio.get_running_loop()
        try:
            if not self._stopping:
                self._add_link()
            while self._links:
                ended, _ = await asyncio.wait([link.task for link in self._links], return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()  # raises only what is a fault of this program
        finally:
            self._stopping = True
            await self._abandon()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take no more jobs; `run` returns when the handlers of those in hand are done. To be called on the event loop.

        A job that has come by then runs. One that the server hands out at this very moment, to a link that waits, is
        ready again at once.
        """
        if self._stopping:
            return
        self._stopping = True
        if not hasattr(self, "_loop"):
            return
        self._stopped_at = self._loop.time()
        for link in self._links:
            self._stop_waiting(link)
            link.wake()

    def _stop_waiting(self, link: _Link) -> None:
        """Close a link that waits for jobs: what it is given at this moment is ready again."""
        if not link.waiting:
            return
        if any(not isinstance(reply, (Error, type(None))) and not reply.is_there for reply in link.unheard):
            self._loop.call_later(SOON, self._stop_waiting, link)  # the server will have heard of the jobs before
        else:
            link.task.cancel()

    def resume(self) -> None:
        """Ask for jobs again, as there is room. To be called on the event loop."""
        for link in self._links:
            link.wake()

    def end(self) -> None:
        """Stop, and cancel the handlers that run; their jobs are given back. To be called on the event loop."""
        self.stop()
        self._ended = True
        for delivery in list(self._in_hand.values()):
            delivery._call_off()

    async def _abandon(self) -> None:
        """Cancel what still runs, if `run` was cancelled. The server releases the jobs when connections close."""
        if self._look is not None:
            self._look.cancel()
        deliveries = [one for link in self._links for one in link.in_hand]
        tasks = [link.task for link in self._links] + list(self._touches)
        for task in tasks:
            task.cancel()
        for delivery in deliveries:
            delivery._call_off()
        tasks += [one._task for one in deliveries if one._task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # Links

    def _add_link(self) -> None:
        link = _Link(self._connect(), self._tubes, self._weights, self._mode)
        self._links.append(link)
        if self._waiter is None:
            self._waiter = link
        link.task = start(self._converse(link), self._loop)

    def _appoint(self) -> None:
        """Let a link that has nothing in hand wait for jobs."""
        for link in self._links:
            if not link.in_hand and not link.busy:
                self._waiter = link
                link.wake()
                return
        if len(self._links) <= self._at_once:  # otherwise some are without a server, and ask by themselves
            self._add_link()

    def _rouse(self, asking: _Link) -> None:
        """Let another link ask, too."""
        for link in self._links:
            if link is not asking and not link.in_hand and not link.busy:
                link.wake()
                return
        if len(self._links) < self._at_once:
            self._add_link()

    async def _converse(self, link: _Link) -> None:
        """What a link does from its beginning to its end."""
        pause = FIRST_PAUSE
        try:
            while True:
                number, waits = self._claim(link)
                answers, link.finished = link.finished, []
                link.saying = answers
                if not number and not answers:
                    if self._stopping and not link.in_hand:
                        return
                    link.busy = False
                    await link.sleep()
                    continue
                link.busy = True
                self._asked += number
                try:
                    jobs = await self._exchange(link, answers, number, waits)
                except (ConnectionLostError, OSError) as error:
                    self._tell_lost(link, error)
                    jobs = None
                except (UnauthorizedError, ForbiddenError) as error:
                    self._fail(error)
                    jobs = None
                except BeanstalkdError as error:  # INTERNAL_ERROR, OUT_OF_MEMORY: it may pass
                    tell(log, logging.ERROR, "reserve-refused", f"reserve refused: {error}")
                    jobs = None
                finally:
                    self._asked -= number
                    if waits and self._waiter is link:
                        self._waiter = None
                if jobs is None:
                    if self._gives_up(link):
                        return
                    await link.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                link.busy = False
                if number:
                    self._more = len(jobs) == number
                if self._idle is not None and waits and not (jobs or self._in_hand or self._stopping):
                    self._idle()
                if jobs:
                    self._begin(link, jobs)
                    await asyncio.sleep(0)  # those that need not wait for anything are done behind it
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._links.remove(link)
            if self._waiter is link:
                self._waiter = None
            await link.client.close()

    def _claim(self, link: _Link) -> tuple[int, bool]:
        """For how many jobs a link shall ask now, and whether it waits for them."""
        if self._stopping:
            return 0, False
        free = self._at_once - self._running - self._asked
        if self._room is not None:
            free = min(free, self._room() - self._asked - self._fresh)
        if free <= 0 and self._waiter is link:
            self._waiter = None
        if free <= 0 or (self._waiter is not None and self._waiter is not link):
            return 0, False
        if self._more:
            if self._waiter is link:
                self._waiter = None
            number = min(free, self._turn)
            if number < free:
                self._rouse(link)
            return number, False
        if len(link.in_hand) == len(link.finished):
            self._waiter = link
            return free, True
        self._appoint()
        return 0, False

    def _gives_up(self, link: _Link) -> bool:
        """Whether to try no longer, after another loss: the consumer stops, and the outcomes in hand are lost."""
        if not self._stopping or self._loop.time() < self._stopped_at + self._last_attempts:
            return False
        for delivery, outcome in link.finished:
            self._settle(delivery, outcome, ConnectionLostError("no connection to the server"))
        link.finished = []
        return not link.in_hand

    def _fail(self, error: Error) -> None:
        self._failure = self._failure or error
        self.stop()

    async def _exchange(
        self, link: _Link, answers: list[tuple[Delivery, Outcome]], number: int, waits: bool
    ) -> list[Job[bytes]]:
        """Say what has become of jobs and ask for others, all at once; return those that have come.

        Raises:
            ConnectionLostError, OSError: what the server has not heard is in `link.finished` again.
        """
        client = link.client
        replies: list[Reply[None] | Error | None] = []
        asked: Reply[list[Job[bytes]]] | None = None
        wait = self._wait if waits else 0
        try:
            if not link.watching:
                await link.watch()
            if self._lost:
                await client.using()  # is answered at once, where what follows may wait for a job
                self._tell_back(link)
            refused: dict[Delivery, Error] = {}
            for one, outcome in list(answers):
                if one._invalid or one._is_held():
                    continue
                if outcome is DONE and not await self._find_replaced(link, one):
                    continue
                if outcome is GIVE_BACK or one._is_replaced:  # it is ready since the connection was lost
                    answers.remove((one, outcome))
                    self._settle(one, outcome, None)
                    continue
                error = await self._take_back(link, one)
                if error is not None:
                    refused[one] = error
            await self._look_up(
                link,
                [one for one, outcome in answers if outcome is not DONE and one._found is None and one not in refused],
            )
            batches = False
            if number:  # with the id of the server, so that jobs are recognized after a loss
                _, batches = await asyncio.gather(client.knows(IDENTITY), client.knows("reserve-batch"))
            gives_back = any(outcome is GIVE_BACK for _, outcome in answers) and await client.knows("give-back")
            whole = any(type(outcome) is Release and outcome.delay % 1 for _, outcome in answers) and (
                not await client.knows(FRACTIONS)
            )
            async with client.pipeline(raise_errors=False) as pipeline:
                for delivery, outcome in answers:
                    replies.append(refused.get(delivery) or _say(pipeline, delivery, outcome, whole, gives_back))
                if batches and not self._stopping:
                    asked = pipeline.reserve_batch(number, wait)
                    link.unheard = replies
                    link.waiting = waits
        finally:
            link.waiting = False
            loss = self._hear(link, answers, replies)
        if loss is not None:
            raise loss
        if not number or self._stopping:
            return [] if asked is None or asked.exception() else asked.result()
        try:
            if asked is not None and not isinstance(asked.exception(), UnsupportedError):
                jobs = asked.result()
            else:
                link.unheard = []
                link.waiting = waits
                jobs = await client.reserve_batch(number, wait)
        except (TimedOutError, DeadlineSoonError):
            jobs = []
        finally:
            link.waiting = False
        return jobs

    def _hear(
        self, link: _Link, answers: list[tuple[Delivery, Outcome]], replies: list[Reply[None] | Error | None]
    ) -> Exception | None:
        """What the server has said to what has become of jobs. What it may not have heard will be said again.

        Returns:
            The loss of the connection, if there was one.
        """
        lost: Exception | None = None
        for (delivery, outcome), reply in itertools.zip_longest(answers, replies):
            error = reply if reply is None or isinstance(reply, Error) else reply.exception()
            is_said = reply is not None and (isinstance(reply, Error) or reply.is_there)
            if delivery._invalid:
                self._settle(delivery, outcome, _uncertain())
            elif not is_said or isinstance(error, ConnectionLostError):
                lost = error or lost
                delivery._in_doubt |= isinstance(error, ConnectionLostError) and error.maybe_done
                self._say_later(delivery, outcome)
            elif isinstance(error, NotFoundError) and delivery._reissue is not None:
                delivery._kept = outcome
            elif isinstance(error, NotFoundError) and outcome is not DONE and not isinstance(reply, Error):
                delivery._is_lost = True
                self._say_later(delivery, outcome)  # once it is taken back
            else:
                is_done = isinstance(error, NotFoundError) and delivery._in_doubt  # it was the answer that got lost
                self._settle(delivery, outcome, None if is_done else error)
        link.said()
        return lost

    async def _look_up(self, link: _Link, deliveries: list[Delivery]) -> None:
        """Ask for the statistics of jobs; those that are not to be had stay unknown."""
        if not deliveries:
            return
        with contextlib.suppress(ConnectionLostError, OSError):
            async with link.client.pipeline(raise_errors=False) as pipeline:
                replies = [pipeline.stats_job(delivery.job_id) for delivery in deliveries]
            for delivery, reply in zip(deliveries, replies):
                with contextlib.suppress(BeanstalkdError):
                    delivery._note(reply.result())

    async def _take_back(self, link: _Link, delivery: Delivery) -> ReservationLostError | None:
        """Reserve a job again whose reservation is lost; return why that cannot be done.

        Raises:
            ConnectionLostError, OSError: the server is not reached.
        """
        if delivery._regain is None:
            delivery._regain = start(self._regain(link, delivery), self._loop)
            self._touches.add(delivery._regain)
            delivery._regain.add_done_callback(self._touches.discard)
        regain = delivery._regain
        await asyncio.wait([regain])
        delivery._regain = None
        try:
            regain.result()
        except ReservationLostError as error:
            return error
        except (ConnectionLostError, OSError):
            raise
        except Error as error:  # it is gone; or this user may not, or the server cannot do this
            return ReservationLostError(f"it cannot be reserved again: {reason_of(error)}")
        return None

    async def _find_replaced(self, link: _Link, delivery: Delivery) -> bool:
        """Whether a job that is done was replaced after its reservation was lost: then it must not be deleted.

        Raises:
            ConnectionLostError, OSError: the server is not reached.
        """
        with contextlib.suppress(BeanstalkdError):  # then the reply to its delete says what is wrong
            if await link.client.recognizes(delivery._job):
                delivery._is_replaced |= not delivery._has((await link.client.peek(delivery.job_id)).body)
        return delivery._is_replaced

    async def _regain(self, link: _Link, delivery: Delivery) -> None:
        client = link.client
        if not await client.recognizes(delivery._job):
            raise _uncertain()
        found = await client.stats_job(delivery.job_id)
        is_untouched = found["reserves"] == delivery._reserves and found["state"] in ("ready", "delayed")
        if not (is_untouched and found["tube"] in link.tubes):
            raise ReservationLostError("another worker reserved the job")
        if delivery._is_released and is_last_attempt(
            found
        ):  # the loss was a failure, and a release would be another one
            raise ReservationLostError("the job has one attempt left")
        job = await client.reserve_job(delivery.job_id)
        reserves = (await client.stats_job(job))["reserves"]
        if not _are_same(job, delivery._job) or reserves != found["reserves"] + 1:
            with contextlib.suppress(ReservationLostError):
                await client.release(job, int(found["pri"]))
            raise ReservationLostError("another worker reserved the job")
        if not delivery._has(job.body):
            delivery._is_replaced = True
            await client.give_back(job)
            raise ReservationLostError("the job was replaced and runs again")
        delivery._job, delivery._reserves, delivery._is_lost = job, reserves, False
        self._tell_taken_back(delivery)

    def _settle(self, delivery: Delivery, outcome: Outcome, error: Exception | None) -> None:
        """The server has heard what became of a job, or never will, which is an error."""
        delivery._link.in_hand.discard(delivery)
        if self._in_hand.get(delivery.job_id) is delivery:
            del self._in_hand[delivery.job_id]
        if error is not None:
            self._tell_untold(delivery, outcome, error)
        if self._settled is not None:
            self._settled(delivery, outcome, error)

    # Jobs

    def _begin(self, link: _Link, jobs: list[Job[bytes]]) -> None:
        """Let the handler run for jobs that have come."""
        received = self._loop.time()
        for job in jobs:
            delivery = Delivery(link, job, received)
            link.in_hand.add(delivery)
            former = self._in_hand.get(job.id)
            if former is not None:
                if former._reissue is not None and former._reissue._task is not None:
                    former._reissue._task.cancel()  # its reservation is gone
                former._reissue = delivery
                former._kept = former._kept or former._link.take_back(former)
                self._running += 1
                delivery._task = start(self._adopt(former, delivery), self._loop)
                continue
            self._in_hand[job.id] = delivery
            if self._ended:
                self._give_back(delivery)
                continue
            self._running += 1
            delivery._task = start(self._attend(delivery), self._loop)
        if self._room is not None:
            self._fresh += len(jobs)
            self._loop.call_soon(self._count_begun, len(jobs))  # behind the first steps of the handlers
        if self._look is None:
            self._look = self._loop.call_later(LOOK, self._look_after)

    def _count_begun(self, number: int) -> None:
        self._fresh -= number

    async def _attend(self, delivery: Delivery) -> None:
        """Let the handler run for a job, to its end."""
        try:
            outcome = await self._handle(delivery)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and asyncio._get_running_loop() is None:
                raise  # the event loop is closed, and with it this coroutine
            if delivery.is_called_off and isinstance(error, asyncio.CancelledError):
                outcome = GIVE_BACK
            else:
                message = f"job {delivery.job_id}: the handler failed"
                tell(log, logging.ERROR, "bug-handler", message, error, job=delivery.job_id)
                outcome = Release(FAULT_DELAY)
        self._running -= 1
        delivery._touch_at = NEVER
        delivery._is_released = isinstance(outcome, Release)
        self._say_later(delivery, outcome)
        delivery._link.wake()

    def _give_back(self, delivery: Delivery) -> None:
        """Give back a job that does not run here."""
        delivery._touch_at = NEVER
        delivery._link.finished.append((delivery, GIVE_BACK))
        delivery._link.wake()

    def _say_later(self, delivery: Delivery, outcome: Outcome) -> None:
        """Let the server be told what has become of a job, over the connection that has it reserved."""
        if delivery._reissue is None:
            delivery._link.finished.append((delivery, outcome))
        else:
            delivery._kept = outcome

    async def _adopt(self, former: Delivery, delivery: Delivery) -> None:
        """A job has come that has an id of those in hand. If it is the same job, its run goes on. If it was replaced,
        it runs when the run in hand has ended. If it may be another job, it runs, too: at once if its body is another
        one, otherwise when the run in hand has ended.
        """
        try:
            while former._reissue is delivery and former._link.is_saying(former):
                await former._link.heard_out()  # if it was released, it has come to run again
            is_same = _are_same(former._job, delivery._job) and not former._invalid
            if is_same and not former._has(delivery.body):
                former._is_replaced, is_same = True, False
            may_be_same = former._is_replaced or former._has(delivery.body)
            if not is_same and may_be_same and former._kept is None and former._task is not None:
                former._touch_at = NEVER
                await asyncio.wait([former._task])
        except asyncio.CancelledError:
            self._running -= 1
            if former._reissue is not delivery:
                delivery._link.in_hand.discard(delivery)
                return
            self._supersede(former)
            self._give_back(delivery)
            return
        link = delivery._link
        self._running -= 1
        if former._reissue is not delivery:  # it has come once more, over another connection: this reservation is gone
            link.in_hand.discard(delivery)
            return
        is_in_hand = self._in_hand.get(delivery.job_id) is former
        if is_same and is_in_hand:
            self._hand_over(former, delivery)
            return
        if is_in_hand:
            former._invalid = True
            self._supersede(former)
        if self._stopping:
            self._give_back(delivery)
            return
        self._in_hand[delivery.job_id] = delivery
        self._running += 1
        await self._attend(delivery)

    def _hand_over(self, former: Delivery, reissue: Delivery) -> None:
        """A job is ours again: its run, or what has become of it, goes on with the reservation of its reissue."""
        link = reissue._link
        former._link.in_hand.discard(former)
        link.in_hand.discard(reissue)
        link.in_hand.add(former)
        former._link, former._job, former._reissue, former._is_lost = link, reissue._job, None, False
        former._reserves = None  # one more than before, or more
        if former._kept is None:
            former._touch_at = self._loop.time() + LOOK
        else:
            link.finished.append((former, former._kept))
            former._kept = None
        self._tell_taken_back(former)
        link.wake()

    def _supersede(self, former: Delivery) -> None:
        """The job that has come with its id is another one, or runs once more."""
        former._reissue = None
        if former._kept is not None:
            error = _uncertain() if former._invalid else NotFoundError()
            self._settle(former, former._kept, None if former._is_replaced else error)
            former._link.wake()

    def _look_after(self) -> None:
        """Touch the jobs for which it is time. Repeats itself while there are jobs."""
        self._look = None
        now = self._loop.time()
        due: dict[_Link, list[Delivery]] = {}
        for delivery in [one for link in self._links for one in link.in_hand]:
            link = delivery._link
            is_cut_off = not (link.client.is_connected or link.touches)  # a job must be taken back before others get it
            if delivery._touch_at <= now or (is_cut_off and delivery._touch_at != NEVER):
                delivery._touch_at = now + WAIT  # until it is answered
                due.setdefault(link, []).append(delivery)
        for link, deliveries in due.items():
            link.touches += 1
            task = start(self._touch(link, deliveries), self._loop)
            self._touches.add(task)
            task.add_done_callback(self._touches.discard)
        if any(link.in_hand for link in self._links):
            self._look = self._loop.call_later(LOOK, self._look_after)

    async def _touch(self, link: _Link, deliveries: list[Delivery]) -> None:
        """Begin the time to run of jobs anew, and take those back that are lost."""
        try:
            held = [one for one in deliveries if one._is_held()]
            async with link.client.pipeline(raise_errors=False) as pipeline:
                replies = [_touch(pipeline, delivery) for delivery in held]
            for one, reply in zip(held, replies):
                trouble = reply if isinstance(reply, Error) else reply.exception()
                if isinstance(trouble, ConnectionLostError):
                    raise trouble
                one._is_lost = trouble is not None
            await self._look_up(link, [one for one in held if one._reserves is None and one._is_held()])
            for one in deliveries:
                if one._touch_at != NEVER and one._link is link:
                    await self._keep(link, one)
        except (Error, OSError) as error:
            self._tell_lost(link, error)
            for one in deliveries:
                if one._touch_at != NEVER:
                    one._touch_at = self._loop.time() + FIRST_PAUSE  # finds out whether it is still ours
        finally:
            link.touches -= 1

    async def _keep(self, link: _Link, delivery: Delivery) -> None:
        """Say when a job is touched again that has just been; take it back before, or give it up, if it is lost."""
        if not delivery._is_held():
            error = await self._take_back(link, delivery) if delivery._reissue is None else None
            if delivery._touch_at == NEVER or delivery._reissue is not None or delivery._link is not link:
                return
            if error is not None:
                delivery._touch_at = NEVER
                if self._in_hand.get(delivery.job_id) is delivery:
                    message = f"job {delivery.job_id}: reservation lost ({error}); it continues, and may run twice"
                    tell(log, logging.WARNING, "reservation-lost", message, job=delivery.job_id, tube=delivery.tube)
                return
        now = self._loop.time()
        time_to_run = float(delivery._found["ttr"]) if delivery._found else 1.0
        delivery._touch_at = now + max(LOOK, time_to_run / 3 - LOOK)

    # The log

    def _tell_lost(self, link: _Link, error: BaseException) -> None:
        if not self._lost:
            self._lost = True
            why = error.reason if isinstance(error, ConnectionLostError) else error  # what is in doubt is said again
            tell(
                log,
                logging.WARNING,
                "server-lost",
                f"lost connection to {link.client._names()}, retrying: {why}",
                running=self._running,
            )

    def _tell_back(self, link: _Link) -> None:
        if self._lost:
            self._lost = False
            tell(log, logging.INFO, "server-back", f"reconnected to {link.client._names()}", running=self._running)

    def _tell_taken_back(self, delivery: Delivery) -> None:
        tell(log, logging.INFO, "job-taken-back", f"job {delivery.job_id} reserved again", job=delivery.job_id)

    def _tell_untold(self, delivery: Delivery, outcome: Outcome, error: Exception) -> None:
        if isinstance(outcome, Release):
            return  # it is ready again as it is
        why = str(error) if isinstance(error, ReservationLostError) or not isinstance(error, NotFoundError) else LOST
        verb = "delete" if outcome is DONE else "bury" if isinstance(outcome, Bury) else "give back"
        message = f"cannot {verb} job {delivery.job_id}: {why}; it may run twice"
        tell(log, logging.WARNING, "outcome-lost", message, job=delivery.job_id, tube=delivery.tube)


def _uncertain() -> ReservationLostError:
    return ReservationLostError("the server was restarted or has no id: the job's id may belong to another job")


async def look_for_server(client: AsyncClient[bytes], tubes: Sequence[str]) -> list[str]:
    """Connect, to see whether there is a server that lets us consume these tubes; the client is closed then.

    Return those that the server has not, so far.

    Raises:
        OSError, Error: there is none, or it does not take our token; ForbiddenError: the right to consume is missing.
        PermissionError: how often a job has been tried could not be asked for: the right to inspect a tube is missing.
    """
    missing = []
    try:
        await client.connect()
        for tube in tubes:
            try:
                await client.stats_tube(tube)
            except ForbiddenError:
                message = f"this user lacks the right to inspect tube {tube}, which is needed to count attempts"
                raise PermissionError(message) from None
            except NotFoundError:
                missing.append(tube)
            await client.watch(tube)
    finally:
        await client.close()
    return missing


class _Link:
    """A connection, and what it has in hand."""

    task: asyncio.Task[None]

    def __init__(self, client: AsyncClient[bytes], tubes: tuple[str, ...], weights: dict[str, int], mode: str) -> None:
        self.client: AsyncClient[bytes] = client
        self.tubes: tuple[str, ...] = tubes
        self.weights: dict[str, int] = weights
        self.mode: str = mode
        self.in_hand: set[Delivery] = set()  # running, or finished and the server has not heard of it
        self.finished: list[tuple[Delivery, Outcome]] = []  # what the server is to be told next
        self.saying: list[tuple[Delivery, Outcome]] = []  # what it is being told
        self._listeners: list[asyncio.Future[None]] = []  # who waits until the server has heard that
        self.busy: bool = False  # a command is not answered, or the server is lost
        self.waiting: bool = False  # for jobs
        self.unheard: list[Any] = []  # replies of which the last ones may not have come when it begins to wait
        self.watching: bool = False
        self.touches: int = 0  # under way
        self._idle: asyncio.Future[None] | None = None

    async def watch(self) -> None:
        """Connect, and watch the tubes; the client does so by itself after a loss."""
        await self.client.connect()
        for tube in self.tubes:
            await self.client.watch(tube, self.weights.get(tube))
        if self.mode:
            await self.client.reserve_mode(self.mode)
        if "default" not in self.tubes:
            await self.client.ignore("default")
        self.watching = True

    async def sleep(self, seconds: float | None = None) -> None:
        """Wait until there may be something to do, or for this many seconds if there is nothing before."""
        loop = asyncio.get_running_loop()
        self._idle = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self.wake)
        try:
            await self._idle
        finally:
            self._idle = None
            if timer is not None:
                timer.cancel()

    def take_back(self, delivery: Delivery) -> Outcome | None:
        """What has become of it, if the server has not been told yet; it will not be."""
        for pair in self.finished:
            if pair[0] is delivery:
                self.finished.remove(pair)
                return pair[1]
        return None

    def is_saying(self, delivery: Delivery) -> bool:
        """Whether what has become of it is on its way, and may or may not have been heard."""
        return any(one is delivery for one, _ in self.saying)

    async def heard_out(self) -> None:
        """Wait until it is known whether the server has heard what it is being told."""
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.append(heard)
        await heard

    def said(self) -> None:
        """It is known now."""
        self.saying = []
        for heard in self._listeners:
            if not heard.done():
                heard.set_result(None)
        self._listeners = []

    def wake(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _are_same(one: Job[bytes], other: Job[bytes]) -> bool:
    """Whether two jobs with one id are certain to be the same: their server is."""
    mine, others = one.origin, other.origin
    return mine is not None and others is not None and bool(mine.server) and mine.server == others.server


def _say(
    pipeline: AsyncPipeline[bytes], delivery: Delivery, outcome: Outcome, whole: bool, gives_back: bool
) -> Reply[None] | None:
    """Say what has become of a job; return the reply, or None if it could not even be said.

    Args:
        whole: the server takes only delays in whole seconds.
        gives_back: the server has give-back.
    """
    if delivery._invalid:
        return None
    job = delivery._job
    with contextlib.suppress(ReservationLostError):
        if outcome is DONE:
            return pipeline.delete(job)
        if outcome is GIVE_BACK:
            if gives_back:
                return pipeline.give_back(job)
            outcome = Release()
        assert isinstance(outcome, (Release, Bury))
        priority = outcome.priority
        if priority is None and delivery._found is not None:
            priority = int(delivery._found["pri"])  # its own
        if isinstance(outcome, Release):
            return pipeline.release(job, priority, math.ceil(outcome.delay) if whole else outcome.delay)
        return pipeline.bury(job, priority)
    return None


def _touch(pipeline: AsyncPipeline[bytes], delivery: Delivery) -> Reply[None] | Error:
    try:
        return pipeline.touch(delivery._job)
    except ReservationLostError as error:
        return error
