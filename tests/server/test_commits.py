"""Replies and commits, with a journal that commits when a test says so."""

import asyncio
import contextlib

import pytest
from rounds import Rounds

from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.server.commits import ENOUGH, Gathering
from beanstalk_server.server.connection import UNCOMMITTED_LIMIT

PUT = b"put 0 0 60 1\r\nx\r\n"
ASK = b"list-tube-used\r\n"
USING = b"USING default\r\n"


class SlowJournal(Journal):
    """Each commit ends when `end_commit` is called."""

    keeps = True

    def __init__(self):
        self.commits = []  # the last may be under way

    async def commit(self):
        self.commits.append(asyncio.get_running_loop().create_future())
        await self.commits[-1]

    async def end_commit(self, error=None):
        await settle()
        if error is None:
            self.commits[-1].set_result(None)
        else:
            self.commits[-1].set_exception(error)
        await settle()


class QuickJournal(Journal):
    """Commits without a task: at once if it may wait, or when `end_commit` is called."""

    keeps = True

    def __init__(self):
        self.commits = []  # whether each might wait
        self.on_end = None

    def begin_commit(self, may_wait, on_end):
        assert self.on_end is None, "one commit at a time"
        self.commits.append(may_wait)
        if may_wait:
            on_end(None)
        else:
            self.on_end = on_end
        return True

    def end_commit(self, error=None):
        on_end, self.on_end = self.on_end, None
        on_end(error)


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
@contextlib.asynccontextmanager
async def rounds():
    """The parts of a server over a slow journal."""
    yield Rounds(SlowJournal(), asyncio.get_running_loop())  # noqa: PT022


async def test_a_reply_to_a_change_waits_for_its_commit_and_what_follows_it_waits_behind(rounds):
    caller, other = rounds.connect(), rounds.connect()
    assert caller.send(ASK) == USING
    assert caller.send(PUT) == b""
    assert caller.send(ASK) == b""
    assert other.send(ASK) == USING, "others report no change"
    await rounds.journal.end_commit()
    assert caller.read() == b"INSERTED 1\r\n" + USING


async def test_what_comes_while_a_commit_is_in_flight_belongs_to_the_next(rounds):
    early, late = rounds.connect(), rounds.connect()
    early.send(PUT)
    await settle()
    late.send(PUT)
    early.send(PUT)
    await rounds.journal.end_commit()
    assert (early.read(), late.read()) == (b"INSERTED 1\r\n", b"")
    assert rounds.gate.durable_lsn == 1
    await rounds.journal.end_commit()
    assert (early.read(), late.read()) == (b"INSERTED 3\r\n", b"INSERTED 2\r\n")
    await settle()
    assert len(rounds.journal.commits) == 2, "nothing is left to be committed"


async def test_a_job_that_is_not_durable_may_be_reserved_at_once(rounds):
    producer, worker = rounds.connect(), rounds.connect()
    worker.send(b"reserve\r\n")
    producer.send(PUT)
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    await rounds.journal.end_commit()


@pytest.mark.parametrize(
    ("reserve", "reply"),
    [
        (b"reserve\r\n", b"RESERVED 1 1\r\nx\r\n"),
        (b"reserve-batch 5 1\r\n", b"RESERVED_BATCH 1\r\nRESERVED 1 1\r\nx\r\n"),
    ],
)
async def test_a_job_with_a_token_is_reserved_when_it_is_durable(rounds, reserve, reply):
    """Otherwise a crash might lose it after its run, and its producer, who has no reply, puts it again."""
    producer, worker, late = rounds.connect(), rounds.connect(), rounds.connect()
    worker.send(reserve)
    producer.send(b"put-with 0 0 60 1 once=t\r\nx\r\n")
    assert worker.read() == b""
    await rounds.journal.end_commit()
    assert worker.read() == reply
    producer.send(PUT)
    assert late.send(b"reserve\r\n").startswith(b"RESERVED"), "the token is durable"
    await rounds.journal.end_commit()


@pytest.mark.parametrize("size", [1000, 20_000, 60_000])
async def test_a_client_that_waits_for_too_much_is_not_read_from_until_a_commit_returns(rounds, size):
    """Its commands count with their replies: one that never waits would fill memory, at 12 bytes of reply each."""

    caller = rounds.connect()
    put = b"put 0 0 60 %d\r\n%b\r\n" % (size, b"x" * size)
    sent = 0
    while caller.transport.reading:
        caller.send(put)
        sent += 1
        await settle()
    assert UNCOMMITTED_LIMIT - 16 * sent < sent * len(put) <= UNCOMMITTED_LIMIT + len(put)
    await rounds.journal.end_commit()
    await rounds.journal.end_commit()
    assert caller.read().count(b"INSERTED") == sent
    assert caller.transport.reading


async def test_a_connection_closes_after_its_last_commit(rounds):
    caller = rounds.connect()
    caller.send(PUT + b"quit\r\n" + ASK)
    assert not caller.transport.closed
    assert not caller.transport.reading, "what comes after a quit is not read"
    assert rounds.broker.connections == 0
    await rounds.journal.end_commit()
    assert caller.read() == b"INSERTED 1\r\n"
    assert caller.transport.closed


async def test_nothing_is_sent_to_a_client_that_is_gone(rounds):
    caller, other = rounds.connect(), rounds.connect()
    caller.send(PUT)
    caller.lose()
    await rounds.journal.end_commit()
    assert caller.read() == b""
    assert other.send(b"reserve\r\n") == b"RESERVED 1 1\r\nx\r\n"


@pytest.mark.parametrize("is_late", [False, True])
async def test_after_a_failure_nothing_is_acknowledged_or_committed(rounds, caplog, is_late):
    caller = rounds.connect()
    caller.send(PUT)
    error = OSError(5, "Input/output error")
    if is_late:  # the journal reports it by itself, with a commit under way
        await settle()
        rounds.journal.on_failure(error)
        await rounds.journal.end_commit(error)
    else:
        await rounds.journal.end_commit(error)
    assert rounds.failures == [error]
    assert rounds.gate.failed.is_set()
    caller.send(PUT)
    await settle()
    await rounds.gate.commit_rest()
    assert caller.read() == b""
    assert len(rounds.journal.commits) == 1
    assert caplog.text.count("the journal failed: the server is stopping") == 1


async def test_changes_that_no_reply_waits_for_are_committed_at_the_end(rounds):
    caller = rounds.connect()
    caller.send(PUT)
    caller.lose()
    await rounds.journal.end_commit()
    rounds.broker.last_lsn += 1
    rest = asyncio.ensure_future(rounds.gate.commit_rest())
    await rounds.journal.end_commit()
    await rest
    assert rounds.gate.durable_lsn == rounds.broker.last_lsn == 2


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
async def test_a_stop_awaits_the_commit_that_is_under_way(rounds, error):
    caller, other = rounds.connect(), rounds.connect()
    caller.send(PUT)
    await settle()
    other.send(PUT)
    rest = asyncio.ensure_future(rounds.gate.commit_rest())
    await rounds.journal.end_commit(error)
    if error is None:
        assert not rest.done()
        await rounds.journal.end_commit()
    await rest
    assert rounds.gate.failure is error
    assert rounds.gate.durable_lsn == (0 if error else 2)
    assert caller.read() == other.read().replace(b"2", b"1") == (b"" if error else b"INSERTED 1\r\n")


async def test_blocked_clients_go_on_in_the_order_in_which_they_came(rounds):
    callers = [rounds.connect() for _ in range(3)]
    for caller in callers:
        caller.send(PUT)
    await rounds.journal.end_commit()
    ids = [int(caller.read().split()[1]) for caller in callers]
    for caller, job_id in zip(callers, ids, strict=True):
        caller.send(b"reserve-job %d\r\n" % job_id)
        caller.read()
    rounds.journal.on_admission(NONE)
    for caller, job_id in zip(callers, ids, strict=True):
        assert caller.send(b"bury %d 0\r\n" % job_id) == b""
    other = rounds.connect()
    assert other.send(ASK) == USING, "a client that changes nothing is served"
    rounds.journal.on_admission(ALL)
    await rounds.journal.end_commit()
    await rounds.journal.end_commit()
    assert [caller.read() for caller in callers] == [b"BURIED\r\n"] * 3
    assert [job.id for job in rounds.broker.jobs.values()] == ids


async def test_deletions_go_on_before_other_changes(rounds):
    callers = [rounds.connect() for _ in range(2)]
    for caller in callers:
        caller.send(PUT + b"reserve\r\n")
    await rounds.journal.end_commit()
    for caller in callers:
        caller.read()
    rounds.journal.on_admission(NONE)
    callers[0].send(b"release 1 0 0\r\n")
    callers[1].send(b"delete 2\r\n")
    rounds.journal.on_admission(DELETIONS)
    await rounds.journal.end_commit()
    await rounds.journal.end_commit()
    assert [caller.read() for caller in callers] == [b"", b"DELETED\r\n"]
    rounds.journal.on_admission(ALL)
    await settle()
    await rounds.journal.end_commit()
    assert callers[0].read() == b"RELEASED\r\n"


async def test_without_full_admission_a_commit_is_made_though_no_reply_waits_for_it(rounds):
    rounds.journal.on_admission(NONE)
    await settle()
    assert len(rounds.journal.commits) == 1
    await rounds.journal.end_commit()


# Commits without a task


def committing():
    """Rounds in which a commit goes on beside a busy event loop, and the client whose put it is for."""
    rounds = Rounds(QuickJournal())
    busy, caller = rounds.connect(), rounds.connect()
    caller.send(PUT)
    rounds.loop.go_round()
    busy.send(ASK * 10_000)
    rounds.loop.go_round()
    return rounds, caller


def test_a_commit_gathers_what_several_rounds_bring():
    rounds = Rounds(QuickJournal())
    callers = [rounds.connect() for _ in range(4)]
    for caller in callers:
        assert caller.send(PUT) == b""
        rounds.loop.go_round()
        assert rounds.journal.commits == [], "the next round may bring more"
    rounds.loop.go_round()
    assert rounds.journal.commits == [True]
    assert [caller.read() for caller in callers] == [b"INSERTED %d\r\n" % job_id for job_id in range(1, 5)]
    rounds.loop.settle()
    assert len(rounds.journal.commits) == 1


def test_a_commit_that_has_enough_gathers_no_more():
    rounds = Rounds(QuickJournal())
    caller = rounds.connect()
    caller.send(PUT)
    rounds.broker.last_lsn += ENOUGH
    rounds.loop.go_round()
    assert rounds.journal.commits == [True]
    assert caller.read() == b"INSERTED 1\r\n"


class Several:
    """Gates that share an event loop, and a client at each."""

    def __init__(self, count):
        self.gathering = Gathering()
        first = Rounds(QuickJournal(), gathering=self.gathering)
        more = [Rounds(QuickJournal(), first.loop, gathering=self.gathering) for _ in range(count - 1)]
        self.all = [first, *more]
        self.loop = first.loop
        self.callers = [rounds.connect() for rounds in self.all]

    @property
    def commits(self):
        return [rounds.journal.commits for rounds in self.all]


def test_gates_that_share_an_event_loop_gather_together_and_begin_at_the_same_time():
    several = Several(3)
    for caller in several.callers:
        caller.send(PUT)
        several.loop.go_round()
        assert several.commits == [[], [], []], "the next round may bring another one more"
    several.loop.go_round()
    assert several.commits == [[True], [True], [True]]
    assert [caller.read() for caller in several.callers] == [b"INSERTED 1\r\n"] * 3
    several.loop.settle()
    assert several.commits == [[True], [True], [True]]


def test_what_several_gates_have_may_be_enough_together():
    several = Several(2)
    for rounds, caller in zip(several.all, several.callers, strict=True):
        caller.send(PUT)
        rounds.broker.last_lsn += ENOUGH // 2
    several.loop.go_round()
    assert several.commits == [[True], [True]]


def test_while_a_write_is_under_way_gates_gather_what_comes():
    several = Several(2)
    early, late = several.callers
    several.gathering.hold()
    early.send(PUT)
    several.loop.settle()
    late.send(PUT)
    several.loop.settle()
    assert several.commits == [[], []]
    several.gathering.release()
    several.loop.settle()
    assert several.commits == [[True], [True]]
    assert (early.read(), late.read()) == (b"INSERTED 1\r\n",) * 2


def test_whoever_gathers_joins_a_write_that_is_about_to_leave():
    several = Several(2)
    several.gathering.hold()
    several.callers[1].send(PUT)
    several.loop.settle()
    several.gathering.join()
    assert several.commits == [[], [False]]
    several.gathering.release()
    several.loop.settle()
    assert several.commits == [[], [False]], "it has asked for one commit"


class BrokenJournal(QuickJournal):
    """What follows from its commits fails."""

    def begin_commit(self, may_wait, on_end):
        super().begin_commit(may_wait, on_end)
        raise LookupError("a mistake")


def test_gates_do_not_wait_for_ever_because_of_what_follows_from_the_commit_of_another():
    several = Several(3)
    several.all[1].journal.__class__ = BrokenJournal
    for caller in several.callers:
        caller.send(PUT)
    several.loop.go_round()
    with pytest.raises(LookupError):
        several.loop.go_round()
    several.loop.settle()
    assert several.commits == [[True], [True], [True]]
    assert several.callers[2].read() == b"INSERTED 1\r\n"


def test_the_event_loop_waits_for_no_commit_while_it_has_something_else_to_do():
    rounds, caller = committing()
    assert rounds.journal.commits == [False]
    assert caller.read() == b""
    rounds.loop.settle()
    assert len(rounds.journal.commits) == 1
    rounds.journal.end_commit()
    assert caller.read() == b"INSERTED 1\r\n"


def test_what_comes_during_a_commit_is_committed_after_it():
    rounds, early = committing()
    late = rounds.connect()
    late.send(PUT)
    early.lose()
    rounds.loop.settle()
    assert len(rounds.journal.commits) == 1
    rounds.journal.end_commit()
    assert late.read() == b""
    rounds.loop.settle()
    assert late.read() == b"INSERTED 2\r\n"
    assert rounds.gate.durable_lsn == 2


@pytest.mark.parametrize("by_itself", [False, True], ids=["the commit", "the journal by itself"])
def test_what_fails_during_a_commit_without_a_task_ends_the_acknowledgements(caplog, by_itself):
    rounds, caller = committing()
    error = OSError(5, "Input/output error")
    if by_itself:
        rounds.journal.on_failure(error)
    rounds.journal.end_commit(None if by_itself else error)
    caller.send(PUT)
    rounds.loop.settle()
    assert caller.read() == b""
    assert rounds.failures == [error]
    assert len(rounds.journal.commits) == 1


def test_a_commit_that_cannot_begin_ends_the_acknowledgements_and_a_stop_waits_for_none(caplog):
    class Failing(QuickJournal):
        def begin_commit(self, may_wait, on_end):
            raise MemoryError

    rounds = Rounds(Failing())
    caller = rounds.connect()
    caller.send(PUT)
    rounds.loop.settle()
    assert caller.read() == b""
    assert [type(error) for error in rounds.failures] == [MemoryError]
    asyncio.run(rounds.gate.commit_rest())


SET_UP = b"put-keyed ready 0 0 60 1\r\nx\r\nput-keyed gone 0 9 60 1\r\nx\r\n"
TELLING = {
    b"put-keyed ready 0 0 60 1\r\ny\r\n": b"EXISTS 1\r\n",
    b"put-with 0 0 60 1 key=ready\r\ny\r\n": b"EXISTS 1\r\n",
    b"replace-keyed ready 0 0 60 1\r\ny\r\n": b"TOO_LATE 1\r\n",
    b"cancel 1\r\n": b"TOO_LATE\r\n",
    b"cancel-keyed ready\r\n": b"TOO_LATE\r\n",
    b"reschedule 1 5\r\n": b"TOO_LATE\r\n",
    b"peek 1\r\n": b"FOUND 1 1\r\nx\r\n",
    b"peek-keyed ready\r\n": b"FOUND 1 1\r\nx\r\n",
    b"stats-job 1\r\n": b"OK ",
    b"list-jobs default buried 0 9\r\n": b"OK ",
    b"peek-ready\r\n": b"NOT_FOUND\r\n",
    b"peek-buried\r\n": b"NOT_FOUND\r\n",
    b"kick 5\r\n": b"KICKED 0\r\n",
    b"clear-tube other\r\n": b"CLEARED 0\r\n",
    b"redrive default 5\r\n": b"REDRIVEN 0\r\n",
    b"move-jobs default buried other 5\r\n": b"MOVED 0\r\n",
    **{
        b"%b\r\n" % command: b"NOT_FOUND\r\n"
        for command in (
            b"delete 2",
            b"release 2 0 0",
            b"bury 2 0",
            b"touch 2",
            b"kick-job 2",
            b"reserve-job 2",
            b"cancel 2",
            b"cancel-keyed gone",
            b"reschedule 2 5",
            b"reschedule-keyed gone 5",
            b"peek 2",
            b"peek-keyed gone",
            b"stats-job 2",
            b"stats-tube none",
            b"pause-tube none 5",
            b"redrive none 5",
            b"list-jobs none ready 0 9",
        )
    },
}


async def told(caller, command):
    """What a client has been told when the event loop has nothing more to do."""
    at_once = caller.send(command)
    await settle()
    return at_once + caller.read()


@pytest.mark.parametrize("command", TELLING, ids=lambda command: command.split(b"\r")[0].decode())
async def test_a_reply_that_tells_of_a_change_waits_for_the_change_of_another_client(rounds, command):
    other, caller = rounds.connect(), rounds.connect()
    caller.send(b"use other\r\nwatch other\r\nuse default\r\n")
    other.send(SET_UP + b"delete 2\r\nreserve\r\n")  # job 1 is reserved, 2 is gone, and nothing is durable
    caller.read()
    assert await told(caller, command) == b""
    assert caller.send(ASK) == b""
    await rounds.journal.end_commit()
    assert caller.read().startswith(TELLING[command])
    assert (await told(caller, command)).startswith(TELLING[command]), "nothing is left to wait for"


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (b"reserve-with-timeout 0\r\n", b"TIMED_OUT\r\n"),
        (b"stats\r\n", b"OK "),
        (b"stats-tube default\r\n", b"OK "),
        (b"stats-tubes - 9\r\n", b"OK "),
        (b"list-tubes\r\n", b"OK "),
        (b"list-clients\r\n", b"OK "),
        (b"pause-tube default 0\r\n", b"PAUSED\r\n"),
    ],
)
async def test_what_tells_of_no_job_is_answered_while_the_disk_is_slow(rounds, command, reply):
    other, caller = rounds.connect(), rounds.connect()
    other.send(SET_UP + b"reserve\r\n")
    assert (await told(caller, command)).startswith(reply)
    await rounds.journal.end_commit()


async def test_a_client_to_whom_nothing_can_be_sent_keeps_no_other_from_its_replies(rounds, caplog):
    callers = [rounds.connect() for _ in range(3)]
    for caller in callers:
        caller.send(PUT)
    failing = callers[1].transport

    def write(data):
        raise LookupError("a mistake")

    failing.on_write = write
    await rounds.journal.end_commit()
    assert failing.aborted
    assert [callers[0].read(), callers[2].read()] == [b"INSERTED 1\r\n", b"INSERTED 3\r\n"]
    assert "a client: a connection failed; this is a bug in the server" in caplog.text
    callers[2].send(PUT)
    await rounds.journal.end_commit()
    assert callers[2].read() == b"INSERTED 4\r\n", "commits go on"
