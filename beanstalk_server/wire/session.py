"""One client's conversation: bytes in, replies out, in the order of the commands.

Whoever owns a session gives it the bytes that come (`receive`) and sends what `take_replies` gives. A session does no
more commands while the broker owes it an answer (to a reserve that waits, to a kick of many jobs), while its client
does not read (`pause_output`), while the journal does not admit the next one (`blocked`), and when its turn has cost
SESSION_QUANTUM (`has_more`): a client that sends a hundred thousand commands at once must not keep others waiting. What
is left of the input waits for the next `run`.

Must never know sockets, files, or which other sessions there are; reads no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.interface import FOREVER, Queue
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import (
    DEADLINE_SOON,
    DONE,
    DRAINING,
    EXISTS,
    NOT_FOUND,
    OUT_OF_MEMORY,
    REPLACED,
    TIMED_OUT,
    TOO_LATE,
    Outcome,
)
from beanstalk_server.wire import grammar
from beanstalk_server.wire.framing import (
    BODY,
    BODY_LOST,
    BODY_SKIPPED,
    BODY_WITHOUT_CRLF,
    LINE,
    LINE_TOO_LONG,
    NEED_MORE,
    Framer,
)
from beanstalk_server.wire.grammar import SECOND
from beanstalk_server.wire.statistics import Process, stats, stats_job, stats_tube, tube_list

SESSION_QUANTUM: Final = 128
"""What one turn of a client may cost before others get theirs. The unit is a simple command (1 to 3 µs).

A kilobyte of reply costs one more, and so does each job kicked, and each 32 tubes that a reserve looks at or a list
names. What the broker counts as its `cost` comes on top: for each 4 tubes that somebody begins or ends to wait in, for
tubes made, and for pages of their list.
"""

STATISTICS_COST: Final = 8
"""What a stats command costs besides."""

log = logging.getLogger("beanstalk_server.session")


class Session(Client):
    """One client's conversation.

    Args:
        broker: where its jobs are.
        process: what stats tells, and where commands are counted.
        on_answer: called when the broker has answered what the session waited for: there are replies to take, and `run`
            may go on. It is called in the midst of another session's command: take note, and return.
        name: what the log calls the client.
        logs_commands: whether each of its commands is a line of the log.
    """

    __slots__ = (
        "blocked",  # the next command may be done when the journal admits it
        "broker",
        "budget",  # how much more this turn may cost
        "closed",  # nothing more will be answered: its owner sends what `take_replies` gives, and hangs up
        "consumed",  # how many bytes of input have been done since replies were last taken
        "counts",  # of the commands, as stats tells them
        "framer",  # what has come and is not done yet
        "has_more",  # the turn was over before the input was: `run` can go on at once
        "input_ended",  # the client has shut down its sending side, and all that it sent has come
        "job_id",  # of the put
        "logs_commands",
        "may_wait",  # a reserve may wait for a job
        "name",
        "on_answer",
        "output_paused",  # the client does not read its replies
        "process",
        "put",  # the put whose body is to come; None when the body is nobody's
        "put_at",  # when it came, in nanoseconds
        "replies",  # not taken yet
        "reply_lsn",  # the last change that the replies report, as an LSN of the broker
        "running",  # within `run`
    )

    def __init__(
        self,
        broker: Queue,
        process: Process,
        on_answer: Callable[[], None],
        name: str = "",
        logs_commands: bool = False,
    ) -> None:
        super().__init__()
        self.broker = broker
        self.process = process
        self.counts = process.commands
        self.on_answer = on_answer
        self.name = name
        self.logs_commands = logs_commands
        self.framer = Framer(grammar.LONG_COMMANDS)
        self.replies: list[bytes] = []
        self.reply_lsn = 0
        self.consumed = 0
        self.budget = SESSION_QUANTUM
        self.has_more = False
        self.running = False
        self.blocked = False
        self.closed = False
        self.input_ended = False
        self.output_paused = False
        self.may_wait = True
        self.put: grammar.Put | None = None
        self.put_at = 0
        self.job_id = 0
        broker.connect(self)

    # What the owner calls

    def receive(self, data: bytes, now: int) -> None:
        """Take bytes from the client, and do what they ask for, for one turn."""
        self.queue_input(data)
        self.run(now)

    def queue_input(self, data: bytes) -> None:
        """Take bytes from the client, and leave them to the next `run`. Nothing is kept after a quit."""
        if not self.closed:
            self.framer.feed(data)

    def run(self, now: int) -> None:
        """Do the commands that have come, until one has to wait or the turn is over (then `has_more` is set)."""
        broker = self.broker
        broker.cost = 0
        self.budget = SESSION_QUANTUM
        self.blocked = False
        if self.waiting:
            if self.may_wait:
                return
            broker.stop_waiting(self)
            self.budget -= broker.cost
            broker.cost = 0
            self.replies.append(grammar.TIMED_OUT)
        if self.busy or self.output_paused or self.closed:
            return
        self.has_more = False
        framer = self.framer
        size = framer.size()
        lsn = broker.last_lsn
        self.running = True
        self._run(framer, now)
        self.running = False
        self.budget -= broker.cost
        if broker.last_lsn != lsn:
            self.reply_lsn = broker.last_lsn
        self.consumed += size - framer.size()
        if self.closed:
            framer.clear()
        elif self.input_ended and not (self.waiting or self.busy or self.has_more or self.blocked):
            self.closed = True

    def take_replies(self) -> bytes:
        """The replies since the last call, in one piece; b"" when there are none."""
        replies = self.replies
        if not replies:
            return b""
        taken = replies[0] if len(replies) == 1 else b"".join(replies)
        replies.clear()
        self.consumed = 0
        return taken

    def pause_output(self) -> None:
        """The client does not read: do no commands, until `resume_output`."""
        self.output_paused = True

    def resume_output(self) -> None:
        """The client reads again. `run` must follow."""
        self.output_paused = False

    def forbid_waiting(self) -> None:
        """The client has shut down its sending side, though not all that it sent may have come: wait for nothing.

        `run` must follow.
        """
        self.may_wait = False

    def end_input(self) -> None:
        """The client will send nothing more: do what it has sent, wait for nothing, then be `closed`.

        `run` must follow.
        """
        self.input_ended = True
        self.may_wait = False

    def disconnect(self, now: int) -> None:
        """The client is gone: give back what it holds. Nothing may be called after this."""
        self.closed = True
        self.framer.clear()
        self.on_answer = _ignore
        self.broker.disconnect(self, now)

    @property
    def input_size(self) -> int:
        """How many bytes have come and are not done yet."""
        return self.framer.size()

    @property
    def cost(self) -> int:
        """What the last `run` has cost, in the unit of SESSION_QUANTUM."""
        return SESSION_QUANTUM - self.budget

    # The broker's answers

    def on_reserved(self, job: Job) -> None:
        self._answer(grammar.reserved(job.id, job.body))

    def on_reserved_batch(self, jobs: list[Job]) -> None:
        self._answer(grammar.reserved_batch([(job.id, job.body) for job in jobs]))

    def on_keyed(self, job_id: int) -> None:
        self.job_id = job_id

    def on_kicked(self, count: int) -> None:
        self.reply_lsn = self.broker.last_lsn
        self._answer(grammar.kicked(count))

    def on_cleared(self, count: int) -> None:
        self.reply_lsn = self.broker.last_lsn
        self._answer(grammar.cleared(count))

    def on_outcome(self, outcome: Outcome) -> None:
        if outcome == TIMED_OUT:
            self._answer(grammar.TIMED_OUT)
        elif outcome == DEADLINE_SOON:
            self._answer(grammar.DEADLINE_SOON)
        else:
            self._answer(grammar.INTERNAL_ERROR)

    def _answer(self, reply: bytes) -> None:
        self._reply_bulk(reply)
        if not self.running:  # else it is given within the command
            self.on_answer()

    # Bytes to commands

    def _run(self, framer: Framer, now: int) -> None:
        """Do commands until something holds."""
        broker = self.broker
        while framer.size() and not (self.waiting or self.busy or self.closed):
            if self.budget <= broker.cost:
                self.has_more = True
                return
            if broker.admits != ALL and self._must_wait(framer):
                self.blocked = True
                return
            self.budget -= 1
            now += 1  # so that deadlines given in one turn keep the order of their commands
            try:
                event = framer.next()
                if event == LINE:
                    self._command(framer.take(), now)
                elif event == BODY:
                    self._take_body(framer.take(), now)
                elif event == NEED_MORE:
                    return
                else:
                    self.put = None
                    self.replies.append(_FRAMING_REPLIES[event])
            except Exception:
                log.exception("%s: a command failed; this is a bug of the server", self.name)
                self.replies.append(grammar.INTERNAL_ERROR)

    def _must_wait(self, framer: Framer) -> bool:
        """Whether what comes next is the end of a put's body, or a command, that the journal may not be told of now."""
        if framer.begins_with(grammar.CHANGES):
            return True
        return self.broker.admits == NONE and (framer.ends_body() or framer.begins_with(grammar.DELETIONS))

    def _command(self, line: bytes, now: int) -> None:
        if self.logs_commands:
            log.info("%s < %s", self.name, ascii(line)[2:-1])
        if line == b"reserve":  # this, put and delete are most of all commands: without the way through a table
            self._reserve(line, now)
            return
        verb, space, arguments = line.partition(b" ")
        if not space:
            _ALONE.get(line, Session._refuse)(self, line, now)
        elif verb == b"put":
            self._put(arguments, now)
        elif verb == b"delete":
            self._delete(arguments, now)
        elif (command := _WITH_ARGUMENTS.get(verb)) is not None:
            command(self, arguments, now)
        else:
            self._refuse(line, now)

    def _refuse(self, line: bytes, now: int) -> None:
        if line.startswith(b"quit") and b"\0" not in line:
            self._quit(line, now)
        elif line.startswith(b"pause-tube"):
            self._pause_tube(line[len(b"pause-tube") :], now)  # beanstalkd needs no space behind this one
        else:
            self.replies.append(grammar.refusal(line))

    def _quit(self, line: bytes, now: int) -> None:
        self.closed = True

    # Producers

    def _put(self, arguments: bytes, now: int) -> None:
        self._begin_put(grammar.parse_put(arguments), grammar.PUT, now)

    def _put_keyed(self, arguments: bytes, now: int) -> None:
        self._begin_put(grammar.parse_put_keyed(arguments, False), grammar.PUT_KEYED, now)

    def _replace_keyed(self, arguments: bytes, now: int) -> None:
        self._begin_put(grammar.parse_put_keyed(arguments, True), grammar.REPLACE_KEYED, now)

    def _begin_put(self, put: grammar.Put | None, command: int, now: int) -> None:
        # `in` takes its left side for a number first, and makes an error that nobody sees: 250 ns.
        if put is None or (put.trailing and b"\0" in put.trailing):
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[command] += 1
        if put.size > self.process.max_job_size:
            self.framer.begin_body(put.size, False)
            return
        if put.trailing:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.broker.begin_put(self)
        self.put = put
        self.put_at = now
        if not put.key:
            self.job_id = self.broker.take_id()
        self.framer.begin_body(put.size, True)

    def _take_body(self, body: bytes, now: int) -> None:
        put = self.put
        assert put is not None, "a body follows a put"
        self.put = None
        if put.key:
            self._end_put_keyed(put, body, now)
        else:
            self._end_put(put, body, now)

    def _end_put(self, put: grammar.Put, body: bytes, now: int) -> None:
        ttr = max(put.ttr, SECOND)
        self._reply_put(self.broker.put(self, self.job_id, put.priority, put.delay, ttr, body, self.put_at, now))

    def _end_put_keyed(self, put: grammar.Put, body: bytes, now: int) -> None:
        ttr = max(put.ttr, SECOND)
        self._reply_put(
            self.broker.put_keyed(self, put.key, put.replaces, put.priority, put.delay, ttr, body, self.put_at, now)
        )

    def _reply_put(self, outcome: Outcome) -> None:
        if outcome == DONE:
            self.replies.append(grammar.inserted(self.job_id))
        elif outcome == REPLACED:
            self.replies.append(grammar.replaced(self.job_id))
        elif outcome == EXISTS:
            self.replies.append(grammar.exists(self.job_id))
        elif outcome == TOO_LATE:
            self.replies.append(grammar.too_late(self.job_id))
        elif outcome == DRAINING:
            self.replies.append(grammar.DRAINING)
        else:
            self.replies.append(grammar.OUT_OF_MEMORY)

    def _use(self, arguments: bytes, now: int) -> None:
        name = grammar.parse_name(arguments)
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.USE] += 1
        self.broker.use(self, name)
        self.replies.append(grammar.using(name))

    # Workers

    def _reserve(self, line: bytes, now: int) -> None:
        self.counts[grammar.RESERVE] += 1
        self._end_reserve(self.broker.reserve(self, FOREVER if self.may_wait else 0, now))

    def _reserve_with_timeout(self, arguments: bytes, now: int) -> None:
        timeout = grammar.parse_timeout(arguments)
        if timeout < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.RESERVE_WITH_TIMEOUT] += 1
        self._end_reserve(self.broker.reserve(self, timeout if self.may_wait else 0, now))

    def _reserve_batch(self, arguments: bytes, now: int) -> None:
        batch = grammar.parse_reserve_batch(arguments)
        if batch is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.RESERVE_BATCH] += 1
        limit, timeout = batch
        self._end_reserve(self.broker.reserve_batch(self, limit, timeout if self.may_wait else 0, now))

    def _end_reserve(self, outcome: Outcome) -> None:
        if outcome in (TIMED_OUT, DEADLINE_SOON):
            self.on_outcome(outcome)

    def _reserve_job(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        if self.broker.reserve_job(self, number, now) != DONE:
            self.replies.append(grammar.NOT_FOUND)

    def _delete(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.DELETE] += 1
        self.replies.append(grammar.DELETED if self.broker.delete(self, number) == DONE else grammar.NOT_FOUND)

    def _release(self, arguments: bytes, now: int) -> None:
        release = grammar.parse_release(arguments)
        if release is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.RELEASE] += 1
        number, priority, delay = release
        done = self.broker.release(self, number, priority, delay, now) == DONE
        self.replies.append(grammar.RELEASED if done else grammar.NOT_FOUND)

    def _bury(self, arguments: bytes, now: int) -> None:
        bury = grammar.parse_bury(arguments)
        if bury is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.BURY] += 1
        number, priority = bury
        self.replies.append(grammar.BURIED if self.broker.bury(self, number, priority) == DONE else grammar.NOT_FOUND)

    def _touch(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.TOUCH] += 1
        self.replies.append(grammar.TOUCHED if self.broker.touch(self, number, now) == DONE else grammar.NOT_FOUND)

    def _watch(self, arguments: bytes, now: int) -> None:
        name = grammar.parse_name(arguments)
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.WATCH] += 1
        self.broker.watch(self, name)
        self.replies.append(grammar.watching(len(self.watched)))

    def _ignore(self, arguments: bytes, now: int) -> None:
        name = grammar.parse_name(arguments)
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.IGNORE] += 1
        done = self.broker.ignore(self, name) == DONE
        self.replies.append(grammar.watching(len(self.watched)) if done else grammar.NOT_IGNORED)

    # Whoever has changed their mind

    def _cancel(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.CANCEL] += 1
        self.replies.append(_CANCEL_REPLIES[self.broker.cancel(self, number)])

    def _cancel_keyed(self, arguments: bytes, now: int) -> None:
        key = grammar.parse_name(arguments)
        if key is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.CANCEL_KEYED] += 1
        self.replies.append(_CANCEL_REPLIES[self.broker.cancel_keyed(self, key)])

    def _reschedule(self, arguments: bytes, now: int) -> None:
        reschedule = grammar.parse_reschedule(arguments)
        if reschedule is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.RESCHEDULE] += 1
        number, delay = reschedule
        self.replies.append(_RESCHEDULE_REPLIES[self.broker.reschedule(self, number, delay, now)])

    def _reschedule_keyed(self, arguments: bytes, now: int) -> None:
        reschedule = grammar.parse_reschedule_keyed(arguments)
        if reschedule is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.RESCHEDULE_KEYED] += 1
        key, delay = reschedule
        self.replies.append(_RESCHEDULE_REPLIES[self.broker.reschedule_keyed(self, key, delay, now)])

    def _clear_tube(self, arguments: bytes, now: int) -> None:
        name = grammar.parse_name(arguments)
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.CLEAR_TUBE] += 1
        outcome = self.broker.clear(self, name)
        if outcome == NOT_FOUND:
            self.replies.append(grammar.NOT_FOUND)
        elif outcome == OUT_OF_MEMORY:
            self.replies.append(grammar.OUT_OF_MEMORY)

    # Everybody else

    def _peek_keyed(self, arguments: bytes, now: int) -> None:
        key = grammar.parse_name(arguments)
        if key is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.PEEK_KEYED] += 1
        self._reply_found(self.broker.peek_keyed(self, key))

    def _peek(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.PEEK] += 1
        self._reply_found(self.broker.peek(number))

    def _peek_ready(self, line: bytes, now: int) -> None:
        self.counts[grammar.PEEK_READY] += 1
        self._reply_found(self.broker.peek_ready(self))

    def _peek_delayed(self, line: bytes, now: int) -> None:
        self.counts[grammar.PEEK_DELAYED] += 1
        self._reply_found(self.broker.peek_delayed(self))

    def _peek_buried(self, line: bytes, now: int) -> None:
        self.counts[grammar.PEEK_BURIED] += 1
        self._reply_found(self.broker.peek_buried(self))

    def _kick(self, arguments: bytes, now: int) -> None:
        bound = grammar.parse_kick(arguments)
        if bound < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.KICK] += 1
        self.broker.kick(self, bound, now)

    def _kick_job(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.replies.append(grammar.KICKED if self.broker.kick_job(self, number, now) == DONE else grammar.NOT_FOUND)

    def _stats(self, line: bytes, now: int) -> None:
        self.counts[grammar.STATS] += 1
        self.budget -= STATISTICS_COST
        self._reply_bulk(grammar.ok(stats(self.broker.server_statistics(), self.process, now).encode()))

    def _stats_job(self, arguments: bytes, now: int) -> None:
        number = grammar.parse_id(arguments)
        if number < 0:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.STATS_JOB] += 1
        self.budget -= STATISTICS_COST
        found = self.broker.job_statistics(number, now)
        if found is None:
            self.replies.append(grammar.NOT_FOUND)
        else:
            self._reply_bulk(grammar.ok(stats_job(found).encode()))

    def _stats_tube(self, arguments: bytes, now: int) -> None:
        name = grammar.parse_name(arguments)
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.STATS_TUBE] += 1
        self.budget -= STATISTICS_COST
        found = self.broker.tube_statistics(name, now)
        if found is None:
            self.replies.append(grammar.NOT_FOUND)
        else:
            self._reply_bulk(grammar.ok(stats_tube(found).encode()))

    def _list_tubes(self, line: bytes, now: int) -> None:
        self.counts[grammar.LIST_TUBES] += 1
        self._reply_bulk(grammar.ok(b"---\n" + self.broker.list_tubes()))

    def _list_tube_used(self, line: bytes, now: int) -> None:
        self.counts[grammar.LIST_TUBE_USED] += 1
        self.replies.append(grammar.using(self.use.name))

    def _list_tubes_watched(self, line: bytes, now: int) -> None:
        self.counts[grammar.LIST_TUBES_WATCHED] += 1
        self.budget -= len(self.watched) >> 5
        self._reply_bulk(grammar.ok(tube_list(self.watched)))

    def _pause_tube(self, arguments: bytes, now: int) -> None:
        pause = grammar.parse_pause(arguments)
        if pause is None:
            self.replies.append(grammar.BAD_FORMAT)
            return
        self.counts[grammar.PAUSE_TUBE] += 1
        name, duration = pause
        if name is None:
            self.replies.append(grammar.BAD_FORMAT)
        else:
            self.replies.append(
                grammar.PAUSED if self.broker.pause(self, name, duration, now) == DONE else grammar.NOT_FOUND
            )

    def _reply_found(self, job: Job | None) -> None:
        if job is None:
            self.replies.append(grammar.NOT_FOUND)
        else:
            self._reply_bulk(grammar.found(job.id, job.body))

    def _reply_bulk(self, reply: bytes) -> None:
        """A reply that may be large."""
        self.replies.append(reply)
        self.budget -= len(reply) >> 10


def _ignore() -> None:
    """Nobody is there to be told."""


_FRAMING_REPLIES: Final[dict[int, bytes]] = {
    LINE_TOO_LONG: grammar.BAD_FORMAT,
    BODY_WITHOUT_CRLF: grammar.EXPECTED_CRLF,
    BODY_SKIPPED: grammar.JOB_TOO_BIG,
    BODY_LOST: grammar.OUT_OF_MEMORY,
}

_CANCEL_REPLIES: Final = {DONE: grammar.CANCELLED, TOO_LATE: grammar.TOO_LATE, NOT_FOUND: grammar.NOT_FOUND}
_RESCHEDULE_REPLIES: Final = {DONE: grammar.RESCHEDULED, TOO_LATE: grammar.TOO_LATE, NOT_FOUND: grammar.NOT_FOUND}

_Command = Callable[[Session, bytes, int], None]

_WITH_ARGUMENTS: Final[dict[bytes, _Command]] = {
    b"put": Session._put,
    b"peek": Session._peek,
    b"reserve-with-timeout": Session._reserve_with_timeout,
    b"reserve-job": Session._reserve_job,
    b"delete": Session._delete,
    b"release": Session._release,
    b"bury": Session._bury,
    b"kick": Session._kick,
    b"kick-job": Session._kick_job,
    b"touch": Session._touch,
    b"stats-job": Session._stats_job,
    b"stats-tube": Session._stats_tube,
    b"use": Session._use,
    b"watch": Session._watch,
    b"ignore": Session._ignore,
    b"pause-tube": Session._pause_tube,
    b"put-keyed": Session._put_keyed,
    b"replace-keyed": Session._replace_keyed,
    b"cancel": Session._cancel,
    b"cancel-keyed": Session._cancel_keyed,
    b"reschedule": Session._reschedule,
    b"reschedule-keyed": Session._reschedule_keyed,
    b"peek-keyed": Session._peek_keyed,
    b"reserve-batch": Session._reserve_batch,
    b"clear-tube": Session._clear_tube,
}

_ALONE: Final[dict[bytes, _Command]] = {
    b"peek-ready": Session._peek_ready,
    b"peek-delayed": Session._peek_delayed,
    b"peek-buried": Session._peek_buried,
    b"reserve": Session._reserve,
    b"stats": Session._stats,
    b"list-tubes": Session._list_tubes,
    b"list-tube-used": Session._list_tube_used,
    b"list-tubes-watched": Session._list_tubes_watched,
}
