"""One client's conversation: bytes in, replies out, in the order of the commands.

The owner of a session passes it the bytes that come (`receive`), and sends what `take_replies` returns. `wait` says
why the next command is not done yet, and what ends that:

    wait        because                                               until
    ----------  ----------------------------------------------------  ------------------------------------------------
    NOTHING     nothing has come, or only a part of it                `receive`
    TURN        the turn has cost SESSION_QUANTUM: a client that      the next turn
                sends a hundred thousand commands at once must not
                keep the others waiting
    ROUND       the command tells of other clients, and the event     the next turn in another round of the event loop
                loop has not reported yet which of them have hung up
    ADMISSION   the journal does not admit it                         a turn when `Broker.admits` has changed
    OUTCOME     the outcome of the one before is pending: a reserve   `on_reserved`, `on_counted`, `on_outcome`, …;
                waits, say, or a kick of many jobs is under way       cancel-reserve; a hang-up, if it waits for a job
    LISTING     the reply to the one before is long                   the next turns

Nothing is done, either, while the client does not read its replies (`pause_output`), or once it is `closed`.

No reply is sent before the changes up to `reply_lsn` are durable. That is the last change there was when the client was
told what has become of a job, by its own command or another's: EXISTS or NOT_FOUND waits as INSERTED and DELETED do.
What hands out jobs, or says that there is none, does not wait, nor do figures. But a job waits until all puts with
tokens are durable: one that was handed out, and then lost with the server, would run again when its put is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from beanstalk_server.access.rights import ADMIN, CONSUME, User
from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.costs import TRANSFER_SHIFT
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.outcome import (
    AGAIN,
    BURIED_INSTEAD,
    DEADLINE_SOON,
    DONE,
    DRAINING,
    EXISTS,
    FAILED,
    NOT_FOUND,
    NOT_IGNORED,
    OUT_OF_MEMORY,
    PENDING,
    REPLACED,
    TIMED_OUT,
    TOO_BIG,
    TOO_LATE,
    Outcome,
)
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.weights import PRIORITY
from beanstalk_server.wire import commands, framing, grammar, replies
from beanstalk_server.wire.listings import Listing
from beanstalk_server.wire.server_info import ServerInfo

SESSION_QUANTUM: Final = 128
"""The budget of one turn of a client, in the unit of queue/costs.py."""

WATCHED_SLICE: Final = 256
"""The most watched tubes that are looked at in one go when the user has changed: fewer if it has many odd patterns."""

# Why the next command is not done yet: the table above.
NOTHING: Final = 0
TURN: Final = 1
ROUND: Final = 2
ADMISSION: Final = 3
OUTCOME: Final = 4
LISTING: Final = 5

_FRAMING_REPLIES: Final[dict[int, bytes]] = {
    framing.BODY_WITHOUT_CRLF: replies.EXPECTED_CRLF,
    framing.BODY_LOST: replies.OUT_OF_MEMORY,
}

_REPLIES: Final[dict[Outcome, bytes]] = {
    NOT_FOUND: replies.NOT_FOUND,
    TOO_LATE: replies.TOO_LATE,
    NOT_IGNORED: replies.NOT_IGNORED,
    DRAINING: replies.DRAINING,
    OUT_OF_MEMORY: replies.OUT_OF_MEMORY,
    TIMED_OUT: replies.TIMED_OUT,
    DEADLINE_SOON: replies.DEADLINE_SOON,
    FAILED: replies.INTERNAL_ERROR,
    TOO_BIG: replies.JOB_TOO_BIG,
    BURIED_INSTEAD: replies.BURIED,
}
"""The replies to outcomes that mean the same for every command."""

log = logging.getLogger("beanstalk_server.session")


class Session(Client):
    """One client's conversation.

    Args:
        queue: what its commands act on.
        server: what it shares with the other sessions.
        on_answer: called when a pending command has been answered, or can go on: `run` must follow, and there may be
            replies to take. The call may come during a command, also of another session: take note, and return.
        name: what the log calls the client.
        logs_commands: whether each of its commands is a line of the log. A token never is.
        user: who the client is; None if clients have no users, and may do everything.
        authenticate: finds the user whose token this is, or None: auth is a command. None if it is not.
        dialect: the commands that the client may give; None for those of all clients. A node that asks on behalf of
            a client has some more (docs/design.md, "Places").
        counted: whether the statistics of the queue count it.
        closes_after_put: whether a malformed put closes the connection, as every malformed put does that beanstalkd
            does not have and whose body has an uncertain end. In beanstalkd, the body is read as commands.
    """

    def __init__(
        self,
        queue: Broker,
        server: ServerInfo,
        on_answer: Callable[[], None],
        name: str = "",
        logs_commands: bool = False,
        user: User | None = None,
        authenticate: Callable[[str], User | None] | None = None,
        dialect: commands.Dialect | None = None,
        counted: bool = True,
        closes_after_put: bool = False,
    ) -> None:
        if authenticate is not None and user is None:
            raise ValueError("authenticate requires user: the client's authenticated user")
        super().__init__()
        self.queue = queue
        self.server = server
        self.dialect = server.dialect if dialect is None else dialect
        self.on_answer = on_answer
        self.name = name
        self.logs_commands = logs_commands
        # what has come and is not done yet
        self.framer = framing.Framer(
            commands.LONG_COMMANDS,
            commands.LONGEST_COMMANDS,
            commands.ALL_PUTS if closes_after_put else commands.EXTENSION_PUTS,
        )
        # The replies that have not been taken yet. Nearly always there is one: it needs no list.
        self._first_reply: bytes | None = None
        self._more_replies: list[bytes] = []
        self.reply_lsn = 0  # the LSN of the last change that the replies report
        self.consumed = 0  # bytes of commands and bodies that have been done since replies were last taken
        self.budget = SESSION_QUANTUM  # how much more this turn may cost
        self.wait = NOTHING  # why the next command is not done yet
        self.closed = False  # nothing more is answered: its owner sends what `take_replies` returns, and hangs up
        self.speaks_http = False  # it is closed because of that
        self.input_ended = False  # the client has shut down its sending side, and all that it sent has come
        self.output_paused = False  # the client does not read its replies
        self.may_wait = True  # a reserve may wait for a job
        self.is_stopped = False  # the next await, which has come and has not been done, must not wait
        self.closes_after_put = closes_after_put
        self.sees_hangups = True  # the event loop has reported all clients that hung up before the input came
        self.is_strict = False  # if the body that is skipped does not end with CR LF, nothing more is answered
        self.malformed_puts = 0  # how many its owner has not been told of
        self.pending: commands.Command | None = None  # the command whose outcome, or whose long reply, is still to come
        self.put: grammar.Put | None = None  # the put whose body is to come
        self.put_at = 0  # when its line came, in nanoseconds
        self.job_id = 0  # of the put that is under way
        self.refusal = replies.JOB_TOO_BIG  # the reply to the put whose body is skipped
        self.listing: Listing | None = None  # the long answer that is under way
        self.search: JobSearch | None = None  # that of its last list-jobs, which may have found more than a page
        self.unchecked = 0  # how many of the first watched tubes the user may not be allowed to consume from
        self.count = 0  # how many jobs the command that has just ended concerned
        self.missing = -1  # how many of those that it named it did not find; -1 if it named none
        self.user: User | None = None
        self.authenticate = authenticate
        queue.connect(self, counted)
        if user is not None:
            self.change_user(user)

    # What the owner calls

    def receive(self, data: bytes, now: int) -> None:
        """Take bytes from the client, and do their commands, for one turn."""
        framer = self.framer
        if len(framer.data) > 0 or self.closed:
            self.queue_input(data)
        else:
            framer.data = data
        self.run(now)

    def queue_input(self, data: bytes) -> None:
        """Take bytes from the client, and leave them to the next `run`. After a quit, they are dropped."""
        if not self.closed:
            self.framer.feed(data)

    def run(self, now: int) -> None:
        """Do the commands that have come, for one turn, unless what is waited for has not come."""
        queue = self.queue
        queue.cost = 0
        self.budget = SESSION_QUANTUM
        wait = self.wait
        if wait == OUTCOME and not self._gives_up_waiting() and not self._calls_off_waiting():
            return
        if wait == LISTING and not self._ends_listing(now):
            return
        if self.output_paused or self.closed:
            self.budget -= queue.cost
            if wait == ADMISSION:
                self.wait = NOTHING  # `resume_output` goes on, with any admission
            return
        if self.unchecked and not self._check_watched():
            return
        self.wait = NOTHING
        lsn = queue.last_lsn
        framer = self.framer
        self._do_commands(framer, now)
        while self.pending is not None and self._calls_off_waiting():  # in the same piece as the reserve
            self._do_commands(framer, now)
        self.budget -= queue.cost
        if queue.last_lsn != lsn:
            self.reply_lsn = queue.last_lsn
        self._end_turn()

    def _end_wait(self) -> None:
        """Let the next command be done: the pending one has been answered."""
        self.pending = None
        self.wait = NOTHING

    def _gives_up_waiting(self) -> bool:
        """Answer TIMED_OUT if the pending command is a reserve that may wait no longer; return whether it was."""
        if self.may_wait or not self.queue.stop_waiting(self):
            return False
        self._end_wait()
        self.reply(replies.TIMED_OUT)
        return True

    def _calls_off_waiting(self) -> bool:
        """Answer CANCELLED if a reserve waits, and cancel-reserve comes next; return whether that is so. The line of
        cancel-reserve, which has no reply of its own, is done then."""
        if not self.waiting or not self.framer.begins_with(commands.CANCELS):
            return False
        self.queue.stop_waiting(self)
        self.framer.next()
        self.framer.take()
        self.server.counts[commands.CANCEL_RESERVE.counter].value += 1
        self.budget -= 1
        self._end_wait()
        self.reply(replies.CANCELLED)
        return True

    def _ends_listing(self, now: int) -> bool:
        """Go on with the long answer that is pending; return whether it has been given."""
        if self.output_paused or not self._go_on_listing(now):
            return False
        self._end_wait()
        return True

    def _end_turn(self) -> None:
        """Close after a quit, or when all the input has been done and no more will come.

        This is a separate method because commands change `closed` and `pending`: inside `run`, mypy would assume their
        earlier values, and so would the compiled module.
        """
        if self.closed:
            self.framer.clear()
        elif self.input_ended and self.wait == NOTHING:
            self.closed = True

    def take_replies(self) -> bytes:
        """The replies since the last call, in one piece; b"" when there are none."""
        taken = self._first_reply
        if taken is None:
            return b""
        self._first_reply = None
        self.consumed = 0
        if len(self._more_replies) > 0:
            taken = b"".join([taken, *self._more_replies])
            self._more_replies.clear()
        return taken

    def pause_output(self) -> None:
        """Do no commands until `resume_output`: the client does not read its replies."""
        self.output_paused = True

    def resume_output(self) -> None:
        """Do commands again: the client reads its replies. `run` must follow."""
        self.output_paused = False

    def forbid_waiting(self) -> None:
        """Wait for nothing any more: the client has shut down its sending side. Some of its input may still come.

        `run` must follow.
        """
        self.may_wait = False

    def stop_waiting(self) -> None:
        """Wait no longer for a job: a reserve that waits is answered TIMED_OUT (`on_answer`).

        If it has come and has not been done yet, because it is not its turn, it does not wait when it is.
        """
        if self.queue.stop_waiting(self):
            self._end_wait()
            self.reply(replies.TIMED_OUT)
            self.on_answer()
        elif self.framer.data:
            self.is_stopped = True

    def end_input(self) -> None:
        """Do the rest of the input, wait for nothing, then be `closed`: the client sends nothing more.

        `run` must follow.
        """
        self.input_ended = True
        self.may_wait = False

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on, who may have other rights than the one before.

        Tubes that it may no longer consume from are no longer watched. A reserve that waited for one of them is
        answered FORBIDDEN (`on_answer`). What else is under way goes on, and reserved jobs stay reserved.

        If the rights differ, and it watches more tubes than WATCHED_SLICE, they are looked at in slices, before its
        next command; a reserve that waits for one of this many is answered FORBIDDEN in any case.
        """
        before = self.user
        self.user = user
        self.owner = user.name
        if before is not None and user.has_rights_of(before):
            return
        self._judge_watched(user)

    def watch_entries(self) -> list[str]:
        """The tubes that it watches, in their order, with the weights that it has given them (`write_watched`)."""
        weights = self.weights
        if weights is None:
            return [tube.name for tube in self.watched]
        return [grammar.write_watched(tube.name, weights.weight(tube)) for tube in self.watched]

    def reserve_mode(self) -> int:
        return PRIORITY if self.weights is None else self.weights.mode

    def take_name(self, name: str) -> None:
        """Set the name that the client gives itself; the log shows it after the address."""
        self.name = f"{self.name.partition(' (')[0]} ({name})"
        self.queue.name_client(self, name)

    def restore(self, used: str, watched: list[str], mode: int = PRIORITY, client_name: str = "") -> None:
        """Let a client that another server has served use and watch these tubes, and watch no others.

        If `used` is "", it uses none of this server's. Must come before the first command. Tubes that its user may not
        consume from are not watched.

        Args:
            watched: as `watch_entries` has them.
            mode: how these tubes are served.
            client_name: the name that it has given itself; "" if it has none.
        """
        queue = self.queue
        queue.set_mode(self, mode)
        if client_name:
            self.take_name(client_name)
        if used:
            queue.use(self, used)
        else:
            queue.unuse(self)
        default = self.watched[0].name if self.watched else ""  # as after `connect`, unless the user may not watch it
        first = grammar.parse_watched(watched[0])[0] if watched else ""
        if default and first != default:
            if first:
                queue.watch(self, first, bounded=False)
            queue.unwatch(self, default)
        for entry in watched:
            name, weight = grammar.parse_watched(entry)
            queue.watch(self, name, bounded=False, weight=weight)
        if self.user is not None:
            self._judge_watched(self.user)

    def _judge_watched(self, user: User) -> None:
        """Watch only tubes that the user may consume from."""
        self.unchecked = 0
        watched = self.watched
        if user.everywhere & CONSUME or self.closed:
            return
        if len(watched) <= WATCHED_SLICE:
            for tube in watched:
                if not user.rights(tube.name) & CONSUME:
                    break
            else:
                return
        if self.queue.stop_waiting(self):
            self._end_wait()
            self.refuse(replies.FORBIDDEN, "reserve needs the right to consume, which has been withdrawn")
            self.on_answer()
        self.unchecked = len(watched)
        self._check_watched()

    def _check_watched(self) -> bool:
        """Unwatch what the user may not consume from, among the last tubes not checked yet; return whether all are."""
        user = self.user
        assert user is not None, "only a user may not do everything"
        watched = self.watched
        last = self.unchecked
        self.unchecked = max(last - max(WATCHED_SLICE * 16 // (16 + user.weight), 1), 0)
        self.budget -= ((last - self.unchecked) * (32 + user.weight)) >> 6
        for position in range(last - 1, self.unchecked - 1, -1):  # where one goes, one that has been checked comes
            name = watched[position].name
            if not user.rights(name) & CONSUME:
                self.queue.unwatch(self, name)
        if self.unchecked:
            self.budget = 0  # no command before the rest has been checked
            self.on_answer()
        return not self.unchecked

    def has_nothing(self) -> bool:
        """Whether a probe would be answered NOTHING now, and change nothing. False, too, if that is not known."""
        return (
            self.wait == NOTHING
            and not self.closed
            and not self.unchecked
            and self._first_reply is None
            and not self.framer.data
            and self.queue.has_nothing(self)
        )

    def can_move(self) -> bool:
        """Whether another server can go on with the client: nothing that it has been promised, or may hope for, would
        be lost, it has not been given half of anything, and what it has sent of a command has been kept."""
        if self.closed or self._first_reply is not None or self.framer.has_dropped():
            return False
        return self.wait != OUTCOME or self.waiting

    def take_commands(self, now: int) -> bytes:
        """What the client, who `can_move`, has sent and has not been answered, as another server is to get it.

        A reserve that waits waits there for the rest of its time. A put whose body has not come as a whole begins anew
        there. Only `disconnect` may follow.
        """
        begun = b"" if self.put is None else self.put.line() + b"\r\n"
        return self._pending_line(now) + begun + self.framer.take_rest()

    def _pending_line(self, now: int) -> bytes:
        if self.listing is not None:
            return self.listing.line
        if self.pending is None:
            return b""
        if not self.is_linked():
            return b"reserve\r\n"
        left = grammar.write_duration(max(self.deadline - now, 0))
        if self.batch:
            return b"reserve-batch %d %b\r\n" % (self.batch, left)
        return b"reserve-with-timeout %b\r\n" % left

    def disconnect(self, now: int, has_left: bool = True) -> None:
        """Release what the client holds: it is gone. No other call may follow.

        Args:
            has_left: as in Broker.
        """
        self.closed = True
        self.framer.clear()
        self.on_answer = _ignore
        self.listing = self.search = None
        self.queue.disconnect(self, now, has_left)

    @property
    def has_replies(self) -> bool:
        """Whether `take_replies` would return any."""
        return self._first_reply is not None

    @property
    def has_more(self) -> bool:
        """Whether `run` can go on at once, or in the next round."""
        return self.wait == TURN or self.wait == ROUND

    @property
    def is_blocked(self) -> bool:
        """Whether it goes on only when the journal admits that, or its client reads its replies."""
        return self.wait == ADMISSION or self.output_paused

    @property
    def input_size(self) -> int:
        """How many bytes have come and are not done yet."""
        return self.framer.size()

    @property
    def cost(self) -> int:
        """What the last `run` has cost, in the unit of SESSION_QUANTUM."""
        return SESSION_QUANTUM - self.budget

    # What the queue calls

    def may_administer(self, tube: str) -> bool:
        user = self.user
        return user is None or user.rights(tube) & ADMIN != 0

    def may_consume(self, tube: str) -> bool:
        user = self.user
        if user is None or user.everywhere & CONSUME:
            return True
        if not user.remembers(tube):
            self.queue.cost += user.weight >> 6
        return user.rights(tube) & CONSUME != 0

    def on_reserved(self, job: Job) -> None:
        self._wait_for_tokens()
        body = job.body
        self._answer(b"RESERVED %d %d\r\n%b\r\n" % (job.id, len(body), body))

    def on_reserved_batch(self, jobs: list[Job]) -> None:
        self._wait_for_tokens()
        self._answer(replies.reserved_batch([(job.id, job.body) for job in jobs]))

    def on_best(self, job: Job, rank: int) -> None:
        self._answer(replies.best(rank, job.id))

    def on_found(self, job: Job) -> None:
        self._tell(replies.found(job.id, job.body))

    def on_counted(self, count: int, missing: int = -1) -> None:
        self.count = count
        self.missing = missing
        command = self.pending
        if command is not None:  # else it is being done, and this outcome follows
            self.settle(command, DONE)
            self._end_pending(command)

    def on_put_batch(self, count: int, first_id: int, last_id: int) -> None:
        self.reply(replies.put_batch(count, first_id, last_id))

    def on_keyed(self, job_id: int) -> None:
        self.job_id = job_id

    def on_outcome(self, outcome: Outcome) -> None:
        command = self.pending
        assert command is not None, "only a pending command gets its outcome later"
        if command.has_body:
            self._settle_put(outcome)
        else:
            self.settle(command, outcome)
        self._end_pending(command)

    def _tell(self, reply: bytes) -> None:
        self.wait_for_changes()
        self._answer(reply)

    def _answer(self, reply: bytes) -> None:
        self.reply(reply)
        command = self.pending
        if command is not None:  # else the command is being done
            self._end_pending(command)

    def _end_pending(self, command: commands.Command) -> None:
        self._end_wait()
        if command.needs != NONE:
            self.wait_for_changes()
        self.on_answer()

    # What commands call

    def reply(self, reply: bytes) -> None:
        """Add a reply; a long one costs more."""
        if self._first_reply is None:
            self._first_reply = reply
        else:
            self._more_replies.append(reply)
        self.budget -= len(reply) >> TRANSFER_SHIFT

    def wait_for_changes(self) -> None:
        """Send no more replies before all changes so far are durable: they tell what has become of jobs."""
        self.reply_lsn = self.queue.last_lsn

    def _wait_for_tokens(self) -> None:
        """Send no more replies before each job that was put with a token is durable."""
        lsn = self.queue.once_lsn
        if lsn > self.reply_lsn:
            self.reply_lsn = lsn

    def settle(self, command: commands.Command, outcome: Outcome) -> None:
        """Answer a command according to its outcome, or note that it is pending."""
        if outcome == DONE:
            if command.done is not None:
                self.reply(command.done)
            elif command.reply_when_done is not None:
                self.reply(command.reply_when_done(self))
            elif command.counts:
                self.wait_for_changes()
                self.reply(replies.counted(command.counts, self.count, self.missing))
        elif outcome == PENDING:
            self.pending = command
            self.wait = OUTCOME if self.listing is None else LISTING
        elif outcome != commands.ANSWERED:
            self.reply(_REPLIES[outcome])
            if outcome in (NOT_FOUND, TOO_LATE):
                self.wait_for_changes()

    def begin_listing(self, listing: Listing, now: int) -> Outcome:
        self.listing = listing
        return commands.ANSWERED if self._go_on_listing(now) else PENDING

    def _go_on_listing(self, now: int) -> bool:
        listing = self.listing
        assert listing is not None, "a list has been begun"
        while not listing.is_complete():
            if self.budget <= self.queue.cost:
                self.on_answer()
                return False
            self.budget -= listing.go_on(now)
        self.listing = None
        if listing.tells_of_jobs:
            self.wait_for_changes()
        self.reply(listing.reply())
        return True

    def begin_put(self, put: grammar.Put, now: int) -> None:
        """Expect the body of a put. If anything follows the arguments in its line, answer BAD_FORMAT instead."""
        if put.size > self.server.max_job_size and not (put.is_batch and put.size <= grammar.BATCH_SIZE):
            self._skip_body(put.size, replies.JOB_TOO_BIG, put.is_extension())
            return
        if put.trailing:
            self.refuse_malformed_put(commands.PUT_PREFIX)
            return
        self.put = put
        self.put_at = now
        if put.saves < 0:
            if not self.producer:
                self.queue.begin_put(self)
            if put.attributes is None and not put.is_batch:
                self.job_id = self.queue.take_id()
        self.framer.begin_body(put.size, True)

    def refuse(self, reply: bytes, reason: str) -> None:
        """Answer what the user may not do."""
        self.reply(reply)
        if reply is replies.FORBIDDEN:
            self._note_forbidden(reason)

    def _note_forbidden(self, reason: str) -> None:
        self.server.forbidden += 1
        self.server.note_forbidden(self.name, self.user.name if self.user is not None else "", reason)

    def refuse_put(self, put: grammar.Put, reply: bytes, reason: str) -> None:
        """Answer a put that cannot be done, when its body has been skipped: because the user may not give it, if that
        is FORBIDDEN. A line that is malformed is answered BAD_FORMAT all the same."""
        if put.trailing and put.size <= self.server.max_job_size:
            self.refuse_malformed_put(commands.PUT_PREFIX)
        else:
            if reply is replies.FORBIDDEN:
                self._note_forbidden(reason)
            self._skip_body(put.size, reply, put.is_extension())

    def refuse_malformed_put(self, line: bytes) -> None:
        """Answer a put whose line is malformed. If beanstalkd does not have the command, no byte of the body is taken
        for a command: the body is skipped, or nothing more is answered."""
        self.malformed_puts += 1
        is_extension = not line.startswith(commands.PUT_PREFIX)
        size = grammar.size_of_body(line) if is_extension else -1
        if size >= 0:
            self._skip_body(size, replies.BAD_FORMAT, True)
        else:
            self.reply(replies.BAD_FORMAT)
            self.closed = is_extension or self.closes_after_put

    def _skip_body(self, size: int, reply: bytes, is_strict: bool) -> None:
        self.refusal = reply
        self.is_strict = is_strict or self.closes_after_put
        self.framer.begin_body(size, False)

    def _end_refused_body(self, found: int) -> None:
        """Answer a put whose body is not kept. Where it ends is uncertain if it does not end with CR LF."""
        put, self.put = self.put, None
        self.reply(self.refusal if found == framing.BODY_SKIPPED else _FRAMING_REPLIES[found])
        if found == framing.BODY_WITHOUT_CRLF or self.framer.is_torn:
            if put is not None or self.refusal != replies.BAD_FORMAT:  # else its line has been counted
                self.malformed_puts += 1
            self.closed = self.closes_after_put or (self.is_strict if put is None else put.is_extension())

    def awaits_hangups(self, line: bytes) -> bool:
        """Put the line back, and wait for another round, if the event loop may not have reported all hang-ups yet."""
        if self.sees_hangups:
            return False
        self.framer.put_back(line)
        self.wait = ROUND
        return True

    def _end_put(self, body: bytes, now: int) -> None:
        put = self.put
        assert put is not None, "a body that is kept follows a put"
        self.put = None
        queue = self.queue
        ttr = max(put.ttr, SECOND)
        attributes = put.attributes
        if put.saves >= 0:
            self.settle(commands.SAVE, queue.save(self, put.saves, body))
        elif attributes is None and not put.is_batch:
            self._settle_put(queue.put(self, self.job_id, put.priority, put.delay, ttr, body, self.put_at, now))
        elif attributes is None:
            bodies = grammar.parse_bodies(body, self.server.max_job_size)
            if bodies is None:
                self.reply(replies.BAD_FORMAT)
                return
            outcome = queue.put_batch(self, put.priority, put.delay, ttr, bodies, self.put_at, now)
            if outcome != DONE:
                self.settle(commands.PUT, outcome)
        else:
            if attributes.at:
                queue.set_wall_offset(self.server.clock_offset())
            self._settle_put(queue.put_with(self, attributes, put.priority, put.delay, ttr, body, self.put_at, now))

    def _settle_put(self, outcome: Outcome) -> None:
        if outcome == DONE:
            self.reply(b"INSERTED %d\r\n" % self.job_id)
        elif outcome == REPLACED:
            self.reply(replies.replaced(self.job_id))
        elif outcome == AGAIN:
            self.reply(b"AGAIN %d\r\n" % self.job_id)
        elif outcome == EXISTS:
            self.reply(replies.exists(self.job_id))
            self.wait_for_changes()
        elif outcome == TOO_LATE:
            self.reply(replies.too_late(self.job_id))
            self.wait_for_changes()
        else:
            self.settle(commands.PUT, outcome)

    def _do_commands(self, framer: framing.Framer, now: int) -> None:
        queue = self.queue
        while self.wait == NOTHING and not self.closed:
            if self.budget <= queue.cost:
                if framer.data:
                    self.wait = TURN
                return
            if queue.admits != ALL and self._awaits_admission(framer):
                self.wait = ADMISSION
                return
            found = framer.next() if len(framer.data) > 0 else framing.NEED_MORE
            if found == framing.NEED_MORE:
                return
            self.budget -= 1
            now += 1  # so that deadlines given in one turn keep the order of their commands
            try:
                if found == framing.LINE:
                    line = framer.content
                    framer.content = b""
                    self.consumed += len(line)
                    if self.logs_commands:
                        shown = commands.shown_line(self.dialect, line)
                        log.info("%(client)s < %(command)s", event("command", client=self.name, command=shown))
                    commands.do_line(self, line, now)
                elif found == framing.BODY:
                    body = framer.content
                    framer.content = b""
                    self.consumed += len(body)
                    self._end_put(body, now)
                elif found == framing.LINE_LOST:
                    self.malformed_puts += 1
                    self.reply(replies.BAD_FORMAT)
                    self.closed = True
                elif found == framing.LINE_TOO_LONG:
                    self.reply(replies.BAD_FORMAT)
                else:
                    self._end_refused_body(found)
            except Exception:
                log.exception(
                    "%(client)s: a command failed; this is a bug in the server",
                    event("bug-in-command", client=self.name),
                )
                self.reply(replies.INTERNAL_ERROR)

    def _awaits_admission(self, framer: framing.Framer) -> bool:
        """Whether the journal does not admit what comes next: a command, or the end of a put's body."""
        if framer.begins_with(commands.CHANGES):
            return True
        return self.queue.admits == NONE and (framer.ends_body() or framer.begins_with(commands.DELETES))


def _ignore() -> None:
    """Replaces `on_answer` when the client is gone."""
