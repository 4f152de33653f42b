"""A reserve that concerns several shards: one reply, at most one grant that is kept, and none that is forgotten.

    probing   each shard is asked for its best ready job, which stays where it is; but not one that this node leads, and
              that has none: one look tells
    taking    the best of all is reserved; if another client was quicker, all are asked again
    waiting   no shard has one: the reserve waits in each of them, and the first that answers decides

A client that hangs up waits for nothing: its places know it themselves, and answer what waits there.

A reserve that is called off goes on until every shard that has a leader has looked for a job: it is answered
CANCELLED only if none of them has one.

The client gets what the first shard answers, at once, and the others stop waiting. A job that one of them
had granted by then is given back as if it had never been reserved, before the client gives another command there: the
router sends none to a shard while an `await` or an `unreserve` has no reply there.

DEADLINE_SOON comes from any shard where the client holds a job, also where it watches no tube.

A shard without a leader has no ready jobs, as long as another one has some: workers are not held up by it. But that
nothing is ready is said only when every shard has said so. Until then the reserve waits on at the others, longer than
it was told to, as every command does in a cluster of one shard without a leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.units import FOREVER, MILLISECOND
from beanstalk_server.routing.operations import Operation, drop
from beanstalk_server.wire import replies
from beanstalk_server.wire.commands import RESERVE_BATCH, Command
from beanstalk_server.wire.grammar import Arguments

if TYPE_CHECKING:
    from beanstalk_server.routing.branch import Branch
    from beanstalk_server.routing.router import Router

ATTEMPTS: Final = 4
"""How often the shards are probed. If other clients have been quicker each time, the reserve then waits in every
shard, also in those that have ready jobs: one of them grants one, and what the others grant is given back."""

# What a reserve is doing
_PROBING: Final = 0
_TAKING: Final = 1
_WAITING: Final = 2
_OVER: Final = 3  # the client has its reply

_LOST: Final = b""
"""Instead of a reply: the leader has gone before it answered."""

_BEST: Final = b"BEST "
_BATCH: Final = b"RESERVED_BATCH "
_RESERVED: Final = b"RESERVED "
_CRLF: Final = b"\r\n"

# What one shard is doing for it
_UNASKED: Final = 0
_PROBED: Final = 1  # the reply to a probe is to come
_AWAITED: Final = 2  # the reply to an await is to come


class Reserving(Operation):
    """A reserve, reserve-with-timeout or reserve-batch."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        arguments = Arguments()
        is_timed = command.read is not None and command.read(text, arguments)
        self._limit = arguments.count if command is RESERVE_BATCH else 0  # the most jobs of a batch; 0: one job
        self._timeout = arguments.duration if is_timed else FOREVER  # how long it may wait, in nanoseconds
        self._deadline = FOREVER  # in nanoseconds; FOREVER for none
        self._attempts = 0
        self._is_called_off = False  # it waits no longer, and shards without a leader do not hold it up
        self._is_counted = False  # a shard has been told to count the command
        self._name = command.name.encode()
        self._state = _PROBING
        self._parts = [_Part(router.branch(shard), key) for key, shard in enumerate(router.concerned())]

    def begin(self) -> None:
        if self._timeout != FOREVER:
            self._deadline = self.router.clock() + self._timeout
        self._probe()

    def on_leader(self, shard: int) -> None:
        for part in self._parts:
            if part.branch.shard == shard and part.state == _UNASKED:
                self._ask_new_leader(part)

    def call_off(self) -> bool:
        self._is_called_off = True
        if self._state == _WAITING:
            self._judge()
        elif not any(part.state != _UNASKED for part in self._parts):
            self._end(replies.CANCELLED)
        return True

    def _ask_new_leader(self, part: _Part) -> None:
        if self._state == _PROBING:
            self._probe_part(part)
        elif self._state == _WAITING:
            if not part.is_done:
                self._await(part, self._milliseconds_left())
            self._judge()

    # Probing and taking

    def _probe(self) -> None:
        self._state = _PROBING
        self._attempts += 1
        silent: _Part | None = None
        is_asked = False
        for part in self._parts:
            part.found = _LOST
            if self._attempts == 1 and part.branch.has_nothing():
                part.found = replies.NOTHING
                silent = silent or part
            elif part.branch.is_led:
                is_asked = True
                self._probe_part(part)
        if silent is not None and not is_asked:
            self._probe_part(silent)  # one shard has to count the command
        elif self._is_called_off and not is_asked:
            self._end(replies.CANCELLED)

    def _probe_part(self, part: _Part) -> None:
        line = b"probe" if self._is_counted else b"probe " + self._name
        if self.router.mode:
            line = b"probe %b %d" % (b"-" if self._is_counted else self._name, self.router.finish)
        self._is_counted = True
        part.state = _PROBED
        part.branch.ask(line, self._on_probed, part.key, False)

    def _on_probed(self, key: int, reply: bytes) -> None:
        """Take the answer of one shard to a probe; go on, if it is the last one."""
        part = self._parts[key]
        part.state = _UNASKED
        part.found = reply
        if self._state == _OVER:
            return
        for other in self._parts:
            if other.state == _PROBED:
                return
        self._choose()

    def _choose(self) -> None:
        """Go on when every shard with a leader has answered its probe."""
        best: _Part | None = None
        is_deadline_soon = False
        has_answers = False
        for part in self._parts:
            if not part.branch.is_led:
                part.found = _LOST
            found = part.found
            if found.startswith(_BEST):
                if best is None or part.rank() < best.rank():
                    best = part
            elif found == replies.DEADLINE_SOON:
                is_deadline_soon = True
            elif found not in (replies.NOTHING, _LOST):
                self._end(found)
                return
            has_answers = has_answers or found != _LOST
        if best is not None and self._attempts < ATTEMPTS:
            self._state = _TAKING
            if self.router.mode:
                self.router.finish = max(self.router.finish, best.rank()[0])
            self._await(best, 0)
        elif best is not None:
            self._wait()
        elif is_deadline_soon:
            self._end(replies.DEADLINE_SOON)
        elif self._is_called_off:
            self._end(replies.CANCELLED)
        elif has_answers:
            if not self._milliseconds_left():
                for part in self._parts:
                    part.is_done = part.found != _LOST
            self._wait()

    # Waiting

    def _milliseconds_left(self) -> int:
        """How long the reserve may wait yet, never less than it was told; -1 for ever."""
        if self._is_called_off or not self.router.may_wait:
            return 0
        if self._deadline == FOREVER:
            return -1
        return max(-(-(self._deadline - self.router.clock()) // MILLISECOND), 0)

    def _wait(self) -> None:
        """Wait in every shard that has a leader."""
        self._state = _WAITING
        left = self._milliseconds_left()
        for part in self._parts:
            if not part.is_done and part.branch.is_led:
                self._await(part, left)
        self._judge()

    def _await(self, part: _Part, milliseconds: int) -> None:
        """Reserve a job of this shard, or a batch; wait this long, or for ever (-1), if there is none."""
        part.state = _AWAITED
        part.is_stopped = False
        part.branch.ask(b"await %d %d" % (milliseconds, self._limit), self._on_awaited, part.key, False)

    def _on_awaited(self, key: int, reply: bytes) -> None:
        """Take the answer of one shard to an await."""
        part = self._parts[key]
        part.state = _UNASKED
        if self._state == _OVER:
            part.unreserve(reply)
        elif self._state == _TAKING and reply in (replies.TIMED_OUT, replies.DEADLINE_SOON, _LOST):
            self._probe()
        elif reply == replies.TIMED_OUT:
            part.is_done = True
            self._judge()
        elif reply == _LOST:
            self._judge()
        else:
            self._end(reply)

    def _judge(self) -> None:
        """While it waits: find out whether it still has to, and where."""
        is_unasked = False  # a shard without a leader has not said that it has nothing
        is_done = True
        is_waiting = False
        for part in self._parts:
            is_done = is_done and (part.is_done or self._is_called_off)
            is_waiting = is_waiting or part.state == _AWAITED
            is_unasked = is_unasked or (part.state == _UNASKED and not part.is_done)
        if is_done and not is_waiting:
            self._end(replies.CANCELLED if self._is_called_off else replies.TIMED_OUT)
        elif is_done:
            for part in self._parts:
                part.stop()
        elif is_unasked and self.router.may_wait:
            for part in self._parts:
                if part.state == _UNASKED and part.is_done and part.branch.is_led:
                    self._await(part, -1)

    def _end(self, reply: bytes) -> None:
        self._state = _OVER
        for part in self._parts:
            part.stop()
        self.router.answer(reply)


class _Part:
    """What one shard has to do with a reserve."""

    def __init__(self, branch: Branch, key: int) -> None:
        self.branch = branch
        self.key = key  # its position among the parts
        self.found = _LOST  # its answer to the last probe
        self.is_done = False  # it has had nothing for as long as the reserve may wait
        self.is_stopped = False  # it has been told to wait no longer
        self.state = _UNASKED

    def rank(self) -> tuple[int, int]:
        """The priority of the job that it has found, or the finish of its tube, and its id: the smaller, the better."""
        _, rank, job_id = self.found.split()
        return int(rank), int(job_id)

    def stop(self) -> None:
        """Wait no longer."""
        if self.state == _AWAITED and not self.is_stopped:
            self.is_stopped = True
            self.branch.stop_waiting()

    def unreserve(self, reply: bytes) -> None:
        """Give back what the shard has granted after another one did, the best first, as others may wait for it."""
        for job_id in reserved_ids(reply):
            self.branch.holdings.discard(job_id)
            self.branch.ask(b"unreserve %d" % job_id, drop, 0, False)


def reserved_ids(reply: bytes) -> list[int]:
    """The ids of the jobs that a reply to a reserve grants."""
    start = 0
    if reply.startswith(_BATCH):
        start = reply.index(_CRLF) + len(_CRLF)
    found: list[int] = []
    while reply.startswith(_RESERVED, start):
        end = reply.index(_CRLF, start)
        _, job_id, size = reply[start:end].split()
        found.append(int(job_id))
        start = end + len(_CRLF) + int(size) + len(_CRLF)
    return found
