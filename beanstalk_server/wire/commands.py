"""The table of commands: for each, its name, how its arguments are read, what it asks of the queue, and its reply.

A command is a row of PROTOCOL or EXTENSIONS, and each fact about it is in its row, or follows from it: what stats
counts, which lines may be long, which commands wait for the journal, which may be given again to another leader, and
how several shards do it. To add a command, add a row here, the function that does it and, unless grammar.py has one
already, the function that reads such arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.rights import ADMIN, ANY_RIGHT, CONSUME, INSPECT, NO_RIGHT, PRODUCE, User
from beanstalk_server.events import event
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.costs import SEARCH_SHIFT, STATISTICS_COST
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.outcome import DONE, NOT_FOUND, Outcome
from beanstalk_server.queue.units import FOREVER
from beanstalk_server.queue.weights import MODES
from beanstalk_server.wire import grammar, places, replies
from beanstalk_server.wire.authorization import (
    EVERY_TUBE,
    NO_TUBE,
    TUBE_IN_USE,
    TUBE_NAMED,
    TUBE_OF_JOB,
    TUBES_OF_JOBS,
    TWO_TUBES,
    WATCHED_TUBES,
    label_refusal,
    need,
    refusal,
)
from beanstalk_server.wire.framing import HTTP_METHODS, Prefixes
from beanstalk_server.wire.grammar import Arguments, without_token
from beanstalk_server.wire.listings import (
    PAGE_ENTRIES,
    ClientListing,
    GroupListing,
    JobPage,
    MeasuredTube,
    TubeListing,
    TubePage,
)
from beanstalk_server.wire.yaml import Rows, stats, stats_job, stats_tube, tube_list, yaml

if TYPE_CHECKING:
    from beanstalk_server.wire.server_info import ServerInfo
    from beanstalk_server.wire.session import Session

Reader = Callable[[bytes, Arguments], bool]
"""Reads what follows a command and a space into the arguments; False if it is malformed."""

Handler = Callable[["Session", Arguments, int], Outcome]
"""Does a command at a given moment; returns the queue's outcome or ANSWERED. The arguments are valid until it does."""

ANSWERED: Final = -1
"""Instead of an outcome: the command has been answered, or needs no answer."""


class Command:
    """A row of the table.

    Args:
        name: the word that its line begins with.
        read: reads its arguments; None if it takes none, and the word is the whole line.
        do: does the command.
        right: the rights of which one is needed, or NO_RIGHT.
        scope: the tubes to which it is needed, as authorization.py names them.
        done: the reply to the outcome DONE, or a function that makes it; None where `on_reserved`, `on_found` and so on
            answer.
        needs: what the journal must admit before the command is done or, if it has a body, before the body ends: ALL,
            DELETIONS, or NONE if nothing.
        has_body: a body follows its line.
        hides: it can answer NOT_FOUND, and does so for a tube to which the user has no right at all. A command with the
            scope TUBE_OF_JOB always does.
        may_be_long: its line may be as long as framing.EXTENDED_LINE_LIMIT.
        is_counted: stats counts it.
        cost: what it costs beyond a simple command and its reply. Commands that cost more tell of other clients, and
            wait until the event loop has reported those that have hung up.
        concerns: what it concerns, as places.py names it; -1 if its scope says so.
        across: how it is done if that is in several shards, as places.py names it; -1 if its scope says so.
        ends: the first words of the replies after which the client no longer holds the jobs that its line names.
        counts: the first word of its reply, which tells how many jobs it concerned; b"" for any other reply.
        acts: done twice, it does more than once, though `needs` is NONE. A command that needs nothing of the journal
            and does not act may be given again to another leader, if that of its shard is lost before the reply.
        version: of an extension, as list-extensions shows it. Each new attribute or argument raises it by one.
    """

    def __init__(
        self,
        name: str,
        read: Reader | None,
        do: Handler,
        right: int,
        scope: int,
        *,
        done: bytes | Callable[[Session], bytes] | None = None,
        needs: int = NONE,
        has_body: bool = False,
        hides: bool = False,
        may_be_long: bool = False,
        is_counted: bool = True,
        cost: int = 0,
        concerns: int = -1,
        across: int = -1,
        ends: tuple[bytes, ...] = (),
        acts: bool = False,
        counts: bytes = b"",
        version: int = 1,
    ) -> None:
        self.name = name
        self.read = read
        self.do = do
        self.right = right
        self.scope = scope
        self.done = done if isinstance(done, bytes) else None  # a reply that is always the same
        self.reply_when_done = None if isinstance(done, bytes) else done  # makes a reply that varies
        self.needs = needs
        self.has_body = has_body
        self.hides = hides or scope == TUBE_OF_JOB
        self.may_be_long = may_be_long
        self.is_counted = is_counted
        self.cost = cost
        self.concerns: int = _CONCERNS[scope] if concerns < 0 else concerns
        self.across: int = _ACROSS.get(scope, places.IN_ONE) if across < 0 else across
        self.ends: tuple[bytes, ...] = ends
        self.is_repeatable: bool = needs == NONE and not acts
        self.counts = counts
        self.version = version
        self.counter: int = -1  # its index in ServerInfo.counts; -1 if it is not counted

    def ids(self, text: bytes, arguments: Arguments) -> list[int]:
        """The ids of the jobs that its arguments name."""
        if self.read is None or not self.read(text, arguments):
            return []
        return arguments.ids if self.concerns == places.JOBS else [arguments.job_id]


_CONCERNS: Final = {
    NO_TUBE: places.ITSELF,
    TUBE_IN_USE: places.USED,
    TUBE_NAMED: places.NAMED,
    TWO_TUBES: places.NAMED,
    TUBE_OF_JOB: places.JOB,
    TUBES_OF_JOBS: places.JOBS,
    WATCHED_TUBES: places.WATCHED,
    EVERY_TUBE: places.EVERYTHING,
}
"""What a command concerns, by its scope."""

_ACROSS: Final = {WATCHED_TUBES: places.RESERVE_OF_BEST, TUBES_OF_JOBS: places.DIVISION}
"""How a command is done in several shards, by its scope."""


# Producers


def _put(session: Session, arguments: Arguments, now: int) -> Outcome:
    put = arguments.put
    assert put is not None, "the arguments of put have been read"
    attributes = put.attributes
    if attributes is not None and attributes.labels is not None:
        reply = label_refusal(session, attributes.labels)
        if reply:
            session.refuse_put(put, reply, "put needs the right to produce in the tubes of its group and limit")
            return ANSWERED
    session.begin_put(put, now)
    return ANSWERED


def _use(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.use(session, arguments.name)


def _using(session: Session) -> bytes:
    return replies.using(session.use.name)


def _cancel(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.cancel(session, arguments.job_id)


def _cancel_keyed(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.cancel_keyed(session, arguments.name)


def _reschedule(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reschedule(session, arguments.job_id, arguments.duration, now)


def _reschedule_keyed(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reschedule_keyed(session, arguments.name, arguments.duration, now)


def _reprioritize(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reprioritize(session, arguments.job_id, arguments.priority, now)


def _reprioritize_keyed(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reprioritize_keyed(session, arguments.name, arguments.priority, now)


# Workers


def _reserve(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reserve(session, FOREVER if session.may_wait else 0, now)


def _reserve_with_timeout(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reserve(session, arguments.duration if session.may_wait else 0, now)


def _reserve_batch(session: Session, arguments: Arguments, now: int) -> Outcome:
    timeout = arguments.duration if session.may_wait else 0
    return session.queue.reserve_batch(session, arguments.count, timeout, now)


def _cancel_reserve(session: Session, arguments: Arguments, now: int) -> Outcome:
    return ANSWERED  # nothing waits: a reserve that does is called off before its turn would come


def _reserve_job(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.reserve_job(session, arguments.job_id, now)


def _delete(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.delete(session, arguments.job_id, now)


def _release(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.release(session, arguments.job_id, arguments.priority, arguments.duration, now)


def _unreserve(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.unreserve(session, arguments.job_id, now)


def _bury(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.bury(session, arguments.job_id, arguments.priority, now)


def _touch(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.touch(session, arguments.job_id, now)


def _delete_batch(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.delete_batch(session, arguments.ids, now)


def _release_batch(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.release_batch(session, arguments.ids, arguments.priority, arguments.duration, now)


def _touch_batch(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.touch_batch(session, arguments.ids, now)


def _touch_all(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.touch_all(session, now)


def _watch(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.watch(session, arguments.name, True, arguments.weight)


def _client_name(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.take_name(arguments.name)
    return DONE


def _reserve_mode(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.queue.set_mode(session, arguments.mode)
    session.reply(replies.reserve_mode(MODES[arguments.mode]))
    return ANSWERED


def _ignore(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.ignore(session, arguments.name)


def _watching(session: Session) -> bytes:
    return replies.watching(len(session.watched))


# Any client


def _peek(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.peek(session, arguments.job_id)


def _peek_keyed(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.peek_keyed(session, arguments.name)


def _peek_ready(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.peek_ready(session)


def _peek_delayed(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.peek_delayed(session)


def _peek_buried(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.peek_buried(session)


def _kick(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.kick(session, arguments.count, now)


def _kick_job(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.kick_job(session, arguments.job_id, now)


def _clear_tube(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.clear(session, arguments.name)


def _redrive(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.redrive(session, arguments.name, arguments.count, now)


def _move_jobs(session: Session, arguments: Arguments, now: int) -> Outcome:
    if not session.server.names_tube_of_shard(arguments.target):
        session.reply(replies.OTHER_SHARD)
        return ANSWERED
    return session.queue.move(session, arguments.name, arguments.state, arguments.target, arguments.count, now)


def _stats_group(session: Session, arguments: Arguments, now: int) -> Outcome:
    search = session.queue.find_group(arguments.target)
    if search is None:
        return NOT_FOUND
    return session.begin_listing(GroupListing(search, session.dialect.quote), now)


def _cancel_group(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.queue.cancel_group(session, arguments.target)


def _list_extensions(session: Session, arguments: Arguments, now: int) -> Outcome:
    rows = {command.name: str(command.version) for command in EXTENSIONS}
    session.reply(replies.ok(yaml(rows | _MORE_EXTENSIONS)))
    return ANSWERED


def _list_clients(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.begin_listing(ClientListing(session.server.clients()), now)


def _drain(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.queue.drain()
    session.server.log.info("draining: new jobs are refused", event("draining"))
    return DONE


def _undrain(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.queue.undrain()
    session.server.log.info("no longer draining: new jobs are accepted", event("draining-ended"))
    return DONE


def _pause_tube(session: Session, arguments: Arguments, now: int) -> Outcome:
    if not arguments.name:  # beanstalkd counts the command all the same
        session.reply(replies.BAD_FORMAT)
        return ANSWERED
    return session.queue.pause(session, arguments.name, arguments.duration, now)


def _stats(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.reply(replies.ok(yaml(statistics_of(session.queue, session.server, now, session.dialect.quote))))
    return ANSWERED


def statistics_of(queue: Broker, server: ServerInfo, now: int, quote: str = '"') -> Rows:
    found = queue.server_statistics()
    return stats(found, server, _counts(PROTOCOL, server), _counts(EXTENSIONS, server), quote, now)


def _counts(commands: Sequence[Command], server: ServerInfo) -> list[tuple[str, int]]:
    return [(command.name, server.counts[command.counter].value) for command in commands if command.is_counted]


def _stats_job(session: Session, arguments: Arguments, now: int) -> Outcome:
    job = session.queue.job_statistics(arguments.job_id, now)
    if job is None:
        return NOT_FOUND
    session.wait_for_changes()
    origin = "" if job.terms is None else job.terms.origin
    if origin and session.user is not None and not session.user.rights(origin):
        origin = ""
    session.reply(replies.ok(stats_job(job, session.dialect.quote, origin)))
    return ANSWERED


def _stats_tube(session: Session, arguments: Arguments, now: int) -> Outcome:
    search = session.queue.find_oldest(arguments.name)
    if search is not None:
        return session.begin_listing(MeasuredTube(session.queue, search, arguments.name, session.dialect.quote), now)
    tube = session.queue.tube_statistics(arguments.name, now)
    if tube is None:
        return NOT_FOUND
    session.reply(replies.ok(stats_tube(tube, session.dialect.quote)))
    return ANSWERED


def _list_tubes(session: Session, arguments: Arguments, now: int) -> Outcome:
    pages = session.queue.list_tubes()
    user = session.user
    if user is not None and not user.everywhere:
        return session.begin_listing(TubeListing(user, pages), now)
    session.reply(replies.ok_list(pages))
    return ANSWERED


def _list_jobs(session: Session, arguments: Arguments, now: int) -> Outcome:
    name, state, position = arguments.name, arguments.state, arguments.position
    count = min(arguments.count, PAGE_ENTRIES)
    search = session.search = session.queue.find_jobs(name, state, position, count, session.search)
    if search is None:
        return NOT_FOUND
    return session.begin_listing(JobPage(session.queue, search, name, state, position, count), now)


def _stats_tubes(session: Session, arguments: Arguments, now: int) -> Outcome:
    return session.begin_listing(TubePage(session.queue, session.user, arguments.name, arguments.count), now)


def _list_tube_used(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.reply(_using(session))
    return ANSWERED


def _list_tubes_watched(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.budget -= len(session.watched) >> SEARCH_SHIFT
    session.reply(replies.ok(tube_list(b"".join([tube.entry for tube in session.watched]))))
    return ANSWERED


def _auth(session: Session, arguments: Arguments, now: int) -> Outcome:
    token = arguments.token
    arguments.token = ""  # it is secret
    authenticate = session.authenticate
    user = authenticate(token) if token and authenticate is not None else None
    if user is None:
        session.reply(replies.UNAUTHORIZED)
        session.closed = True
    else:
        session.change_user(user)
        session.reply(replies.AUTHENTICATED)
    return ANSWERED


def _quit(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.closed = True
    return ANSWERED


# Places: commands that one node gives another for a client that several shards serve (docs/design.md, "Places")


def _probe_alone(session: Session, arguments: Arguments, now: int) -> Outcome:
    arguments.finish = 0
    return _probe(session, arguments, now)


def _probe(session: Session, arguments: Arguments, now: int) -> Outcome:
    outcome = session.queue.probe(session, now, arguments.finish)
    if outcome == NOT_FOUND:
        session.reply(replies.NOTHING)
        return ANSWERED
    return outcome


def _probe_for(session: Session, arguments: Arguments, now: int) -> Outcome:
    if arguments.name != "-":  # else it has been counted
        counter = _PROBED.get(arguments.name, -1)
        if counter < 0:
            session.reply(replies.BAD_FORMAT)
            return ANSWERED
        session.server.counts[counter].value += 1
    return _probe(session, arguments, now)


def _await(session: Session, arguments: Arguments, now: int) -> Outcome:
    timeout = arguments.duration
    if session.is_stopped or not session.may_wait:
        session.is_stopped = False
        timeout = 0
    if arguments.count:
        return session.queue.reserve_batch(session, arguments.count, timeout, now)
    return session.queue.reserve(session, timeout, now)


def _unuse(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.queue.unuse(session)
    return DONE


def _unwatch(session: Session, arguments: Arguments, now: int) -> Outcome:
    session.queue.unwatch(session, arguments.name)
    return DONE


# The table, and what is derived from it

PUT: Final = Command("put", grammar.read_put, _put, PRODUCE, TUBE_IN_USE, needs=DELETIONS, has_body=True)
RESERVE: Final = Command("reserve", None, _reserve, CONSUME, WATCHED_TUBES)
DELETE: Final = Command(
    "delete",
    grammar.read_id,
    _delete,
    CONSUME,
    TUBE_OF_JOB,
    done=replies.DELETED,
    needs=DELETIONS,
    ends=(b"DELETED", b"NOT_FOUND"),
)
RESERVE_WITH_TIMEOUT: Final = Command(
    "reserve-with-timeout", grammar.read_timeout, _reserve_with_timeout, CONSUME, WATCHED_TUBES
)
RESERVE_BATCH: Final = Command("reserve-batch", grammar.read_reserve_batch, _reserve_batch, CONSUME, WATCHED_TUBES)
CANCEL_RESERVE: Final = Command("cancel-reserve", None, _cancel_reserve, NO_RIGHT, NO_TUBE, acts=True)
PAUSE_TUBE: Final = Command(
    "pause-tube", grammar.read_pause, _pause_tube, ADMIN, TUBE_NAMED, hides=True, done=replies.PAUSED, needs=DELETIONS
)
IGNORE: Final = Command(
    "ignore",
    grammar.read_name,
    _ignore,
    NO_RIGHT,
    NO_TUBE,
    done=_watching,
    concerns=places.NAMED,
    across=places.IGNORE_TUBE,
)
SAVE: Final = Command(
    "save",
    grammar.read_save,
    _put,
    CONSUME,
    TUBE_OF_JOB,
    done=replies.SAVED,
    needs=DELETIONS,
    has_body=True,
    ends=(b"NOT_FOUND",),
)
QUIT: Final = Command("quit", None, _quit, NO_RIGHT, NO_TUBE, is_counted=False, acts=True)

PROTOCOL: Final = (
    PUT,
    Command("peek", grammar.read_id, _peek, INSPECT, TUBE_OF_JOB),
    Command("peek-ready", None, _peek_ready, INSPECT, TUBE_IN_USE),
    Command("peek-delayed", None, _peek_delayed, INSPECT, TUBE_IN_USE),
    Command("peek-buried", None, _peek_buried, INSPECT, TUBE_IN_USE),
    RESERVE,
    RESERVE_WITH_TIMEOUT,
    Command("reserve-job", grammar.read_id, _reserve_job, CONSUME, TUBE_OF_JOB, needs=ALL, is_counted=False),
    DELETE,
    Command(
        "release",
        grammar.read_release,
        _release,
        CONSUME,
        TUBE_OF_JOB,
        done=replies.RELEASED,
        needs=ALL,
        ends=(b"RELEASED", b"BURIED", b"NOT_FOUND"),
    ),
    Command("use", grammar.read_name, _use, ANY_RIGHT, TUBE_NAMED, done=_using, across=places.USE_TUBE),
    Command("watch", grammar.read_watch, _watch, CONSUME, TUBE_NAMED, done=_watching, across=places.WATCH_TUBE),
    IGNORE,
    Command(
        "bury",
        grammar.read_bury,
        _bury,
        CONSUME,
        TUBE_OF_JOB,
        done=replies.BURIED,
        needs=ALL,
        ends=(b"BURIED", b"NOT_FOUND"),
    ),
    Command("kick", grammar.read_kick, _kick, ADMIN, TUBE_IN_USE, needs=ALL, counts=b"KICKED"),
    Command(
        "kick-job", grammar.read_id, _kick_job, ADMIN, TUBE_OF_JOB, done=replies.KICKED, needs=ALL, is_counted=False
    ),
    Command(
        "touch", grammar.read_id, _touch, CONSUME, TUBE_OF_JOB, done=replies.TOUCHED, ends=(b"NOT_FOUND",), acts=True
    ),
    Command("stats", None, _stats, INSPECT, EVERY_TUBE, cost=STATISTICS_COST, across=places.SUM),
    Command("stats-job", grammar.read_id, _stats_job, INSPECT, TUBE_OF_JOB, cost=STATISTICS_COST),
    Command("stats-tube", grammar.read_name, _stats_tube, INSPECT, TUBE_NAMED, hides=True, cost=STATISTICS_COST),
    Command(
        "list-tubes", None, _list_tubes, NO_RIGHT, NO_TUBE, concerns=places.EVERYTHING, across=places.LIST_OF_TUBES
    ),
    Command("list-tube-used", None, _list_tube_used, NO_RIGHT, NO_TUBE),
    Command("list-tubes-watched", None, _list_tubes_watched, NO_RIGHT, NO_TUBE),
    PAUSE_TUBE,
    QUIT,
)
"""The commands of beanstalkd, in the order in which stats counts them."""


def _batch_command(name: str, read: Reader, do: Handler, needs: int, counts: bytes, ends: bool = True) -> Command:
    return Command(
        name,
        read,
        do,
        CONSUME,
        TUBES_OF_JOBS,
        needs=needs,
        may_be_long=True,
        ends=(counts,) if ends else (),
        acts=True,
        counts=counts,
    )


def _put_command(name: str, read: Reader, version: int = 1) -> Command:
    return Command(
        name, read, _put, PRODUCE, TUBE_IN_USE, needs=DELETIONS, has_body=True, may_be_long=True, version=version
    )


EXTENSIONS: Final = (
    _put_command("put-keyed", grammar.read_put_keyed),
    _put_command("replace-keyed", grammar.read_replace_keyed),
    Command("cancel", grammar.read_id, _cancel, PRODUCE, TUBE_OF_JOB, done=replies.CANCELLED, needs=DELETIONS),
    Command(
        "cancel-keyed",
        grammar.read_name,
        _cancel_keyed,
        PRODUCE,
        TUBE_IN_USE,
        hides=True,
        done=replies.CANCELLED,
        needs=DELETIONS,
    ),
    Command(
        "reschedule", grammar.read_reschedule, _reschedule, PRODUCE, TUBE_OF_JOB, done=replies.RESCHEDULED, needs=ALL
    ),
    Command(
        "reschedule-keyed",
        grammar.read_reschedule_keyed,
        _reschedule_keyed,
        PRODUCE,
        TUBE_IN_USE,
        hides=True,
        done=replies.RESCHEDULED,
        needs=ALL,
        may_be_long=True,
    ),
    Command("peek-keyed", grammar.read_name, _peek_keyed, INSPECT, TUBE_IN_USE, hides=True),
    RESERVE_BATCH,
    Command(
        "clear-tube", grammar.read_name, _clear_tube, ADMIN, TUBE_NAMED, hides=True, needs=DELETIONS, counts=b"CLEARED"
    ),
    _put_command("put-with", grammar.read_put_with, 3),
    Command("redrive", grammar.read_redrive, _redrive, ADMIN, TUBE_NAMED, hides=True, needs=ALL, counts=b"REDRIVEN"),
    Command("list-jobs", grammar.read_list_jobs, _list_jobs, INSPECT, TUBE_NAMED, hides=True, may_be_long=True),
    Command(
        "stats-tubes",
        grammar.read_stats_tubes,
        _stats_tubes,
        NO_RIGHT,
        NO_TUBE,
        may_be_long=True,
        cost=STATISTICS_COST,
        concerns=places.EVERYTHING,
        across=places.PAGE_OF_TUBES,
    ),
    Command(
        "list-clients", None, _list_clients, ADMIN, EVERY_TUBE, cost=STATISTICS_COST, across=places.LIST_OF_CLIENTS
    ),
    Command(
        "move-jobs",
        grammar.read_move_jobs,
        _move_jobs,
        ADMIN,
        TWO_TUBES,
        hides=True,
        needs=ALL,
        may_be_long=True,
        counts=b"MOVED",
    ),
    Command("drain", None, _drain, ADMIN, EVERY_TUBE, done=replies.DRAINING, across=places.SAME_OF_ALL),
    Command("undrain", None, _undrain, ADMIN, EVERY_TUBE, done=replies.NOT_DRAINING, across=places.SAME_OF_ALL),
    Command(
        "stats-group",
        grammar.read_group,
        _stats_group,
        INSPECT,
        TUBE_NAMED,
        hides=True,
        cost=STATISTICS_COST,
        concerns=places.GROUP,
    ),
    Command(
        "cancel-group",
        grammar.read_group,
        _cancel_group,
        ADMIN,
        TUBE_NAMED,
        hides=True,
        needs=DELETIONS,
        concerns=places.GROUP,
        counts=b"CANCELLED_GROUP",
    ),
    CANCEL_RESERVE,
    Command(
        "put-batch",
        grammar.read_put_batch,
        _put,
        PRODUCE,
        TUBE_IN_USE,
        needs=DELETIONS,
        has_body=True,
    ),
    _batch_command("delete-batch", grammar.read_ids, _delete_batch, DELETIONS, b"DELETED_BATCH"),
    _batch_command("release-batch", grammar.read_release_batch, _release_batch, ALL, b"RELEASED_BATCH"),
    _batch_command("touch-batch", grammar.read_ids, _touch_batch, NONE, b"TOUCHED_BATCH", ends=False),
    Command("reserve-mode", grammar.read_mode, _reserve_mode, NO_RIGHT, NO_TUBE, across=places.TELL_ALL),
    Command("touch-all", None, _touch_all, NO_RIGHT, NO_TUBE, across=places.COUNT, acts=True, counts=b"TOUCHED_ALL"),
    Command(
        "reprioritize", grammar.read_bury, _reprioritize, PRODUCE, TUBE_OF_JOB, done=replies.REPRIORITIZED, needs=ALL
    ),
    Command(
        "reprioritize-keyed",
        grammar.read_reprioritize_keyed,
        _reprioritize_keyed,
        PRODUCE,
        TUBE_IN_USE,
        hides=True,
        done=replies.REPRIORITIZED,
        needs=ALL,
        may_be_long=True,
    ),
    Command(
        "give-back",
        grammar.read_id,
        _unreserve,
        CONSUME,
        TUBE_OF_JOB,
        done=replies.GIVEN_BACK,
        needs=ALL,
        ends=(b"GIVEN_BACK", b"NOT_FOUND"),
    ),
    SAVE,
    Command(
        "client-name", grammar.read_name, _client_name, NO_RIGHT, NO_TUBE, done=replies.NAMED, across=places.TELL_ALL
    ),
    Command("list-extensions", None, _list_extensions, NO_RIGHT, NO_TUBE, concerns=places.USED),
)
"""The commands that beanstalkd does not have (docs/protocol-extensions.md); stats lists them after all other keys."""


_MORE_EXTENSIONS: Final = {"durations": "1"}
"""Extensions that are not commands, and their versions: durations with decimals."""


AUTH: Final = Command("auth", grammar.read_token, _auth, NO_RIGHT, NO_TUBE, is_counted=False)
"""A command only in a session that can authenticate; stats keeps the keys that it has without it."""


def _assign_counters(commands: Sequence[Command]) -> int:
    """Give each command that is counted its counter; return how many."""
    count = 0
    for command in commands:
        if command.is_counted:
            command.counter = count
            count += 1
    return count


COUNTERS: Final = _assign_counters(PROTOCOL + EXTENSIONS)
"""How many commands are counted."""


_PROBED: Final = {command.name: command.counter for command in (RESERVE, RESERVE_WITH_TIMEOUT, RESERVE_BATCH)}
"""The counters of the commands that begin with a probe."""


def _prefixes(commands: Sequence[Command]) -> tuple[bytes, ...]:
    return tuple([command.name.encode() + b" " for command in commands])


LONG_COMMANDS: Final = _prefixes([command for command in PROTOCOL + EXTENSIONS if command.may_be_long])
"""The prefixes of lines that may be long."""

EXTENSION_PUTS: Final = _prefixes([command for command in EXTENSIONS if command.has_body])
"""The prefixes of lines that beanstalkd does not have and a body follows: no byte of it may be taken for a command."""

PUT_PREFIX: Final = b"put "
_DELETE_PREFIX: Final = b"delete "

ALL_PUTS: Final = (*EXTENSION_PUTS, PUT_PREFIX)

LONGEST_COMMANDS: Final = _prefixes([command for command in PROTOCOL + EXTENSIONS if command.scope == TUBES_OF_JOBS])
"""The prefixes of lines that may have a thousand ids."""

CHANGES: Final = _prefixes([command for command in PROTOCOL + EXTENSIONS if command.needs == ALL])
"""The prefixes of lines that wait until the journal admits everything."""

DELETES: Final = _prefixes(
    [command for command in PROTOCOL + EXTENSIONS if command.needs == DELETIONS and not command.has_body]
)
"""The prefixes of lines that wait until it admits deletions, as the end of a put's body does."""

REPEATABLE: Final = frozenset([command.name.encode() for command in PROTOCOL + EXTENSIONS if command.is_repeatable])
"""The names of commands that may be given again to another leader."""

TIMED: Final = Prefixes(
    _prefixes(
        [command for command in PROTOCOL + EXTENSIONS if command.scope == WATCHED_TUBES and command.read is not None]
    )
)
"""The prefixes of lines that may have a timeout."""

CHANGES_OF_CLIENT: Final = Prefixes(
    _prefixes(
        [
            command
            for command in PROTOCOL + EXTENSIONS
            if command.across in (places.USE_TUBE, places.WATCH_TUBE, places.IGNORE_TUBE, places.TELL_ALL)
        ]
    )
)
"""The prefixes of lines that change which tubes a client uses and watches, and how these are served."""

CANCELS: Final = (CANCEL_RESERVE.name.encode() + b"\r\n",)
"""The line that calls off the reserve that waits. It is looked for while nothing else is done."""


class Dialect:
    """What depends on the version of beanstalkd that a server answers as.

    Args:
        commands: the commands that clients may give.
        quote: the quotation mark around strings in statistics, or "".
    """

    def __init__(self, commands: Sequence[Command], quote: str) -> None:
        self.commands = commands
        # commands by name
        self.without_arguments = {command.name.encode(): command for command in commands if command.read is None}
        # commands by name
        self.with_arguments = {command.name.encode(): command for command in commands if command.read is not None}
        self.quote = quote

    def with_commands(self, more: Sequence[Command]) -> Dialect:
        return Dialect([*self.commands, *more], self.quote)


def _before_1_13() -> list[Command]:
    """The commands of 1.12, which reads the timeout of a reserve differently."""
    old = Command(RESERVE_WITH_TIMEOUT.name, grammar.read_old_timeout, _reserve_with_timeout, CONSUME, WATCHED_TUBES)
    old.counter = RESERVE_WITH_TIMEOUT.counter
    return [old if command is RESERVE_WITH_TIMEOUT else command for command in PROTOCOL + EXTENSIONS]


def _unwatch_command() -> Command:
    """As ignore, and counted as one, but it also ignores the last tube."""
    command = Command("unwatch", grammar.read_name, _unwatch, NO_RIGHT, NO_TUBE, done=_watching, concerns=places.NAMED)
    command.counter = IGNORE.counter
    return command


HERE: Final = "here-"
"""What the name of a command begins with that asks for what one shard has. With more letters, a line with the longest
name of a tube would be too long."""


def _shard_command(command: Command) -> Command:
    """As this command, which all shards are asked for; it is counted at the one that is asked for it by its name."""
    return Command(
        HERE + command.name,
        command.read,
        command.do,
        command.right,
        command.scope,
        done=command.done,
        is_counted=False,
        cost=command.cost,
        concerns=places.EVERYTHING,
        counts=command.counts,
    )


PLACE_COMMANDS: Final = (
    Command("probe", None, _probe_alone, NO_RIGHT, NO_TUBE, is_counted=False, concerns=places.WATCHED),
    Command("probe", grammar.read_probe, _probe_for, NO_RIGHT, NO_TUBE, is_counted=False, concerns=places.WATCHED),
    Command("await", grammar.read_await, _await, NO_RIGHT, NO_TUBE, is_counted=False, concerns=places.WATCHED),
    Command(
        "unreserve",
        grammar.read_id,
        _unreserve,
        NO_RIGHT,
        NO_TUBE,
        done=replies.UNRESERVED,
        is_counted=False,
        concerns=places.JOB,
    ),
    Command("unuse", None, _unuse, NO_RIGHT, NO_TUBE, done=_using, is_counted=False),
    _unwatch_command(),
    *[
        _shard_command(command)
        for command in PROTOCOL + EXTENSIONS
        if command.concerns == places.EVERYTHING or command.across == places.COUNT
    ],
)
"""The commands that only nodes give, to sessions that serve a place. Those that reserve need no right: a session
watches only what its user may consume from, and has reserved nothing else."""


DIALECTS: Final = {"1.12": Dialect(_before_1_13(), ""), "1.13": Dialect(PROTOCOL + EXTENSIONS, '"')}
"""The dialects, by version of beanstalkd."""

LINKED: Final = {version: dialect.with_commands(PLACE_COMMANDS) for version, dialect in DIALECTS.items()}
"""The dialects of sessions that serve a place, by the same versions."""


# From a line to a command

_TAKE_NO_ARGUMENTS: Final = tuple([command.name.encode() for command in PROTOCOL if command.read is None])

_ARGUMENTS: Final = Arguments()
"""The arguments of the command that is being done; there is only one at a time."""


def do_line(session: Session, line: bytes, now: int) -> None:
    """Do the command on a line, and answer it unless its outcome is pending.

    Most commands are reserve, put and delete: they take a shortcut past the table, unless the session has a user.
    """
    user = session.user
    if user is not None:
        _do_line_of_user(session, user, line, now)
        return
    if line.startswith(_DELETE_PREFIX):
        job_id = grammar.parse_id(line, len(_DELETE_PREFIX))
        if job_id < 0:
            session.reply(replies.BAD_FORMAT)
            return
        session.server.counts[DELETE.counter].value += 1
        session.settle(DELETE, session.queue.delete(session, job_id, now))
        return
    if line.startswith(PUT_PREFIX):
        put = grammar.parse_put(line, len(PUT_PREFIX))
        if put is None:
            session.refuse_malformed_put(line)
            return
        session.server.counts[PUT.counter].value += 1
        session.begin_put(put, now)
        return
    if line == b"reserve":
        session.server.counts[RESERVE.counter].value += 1
        session.settle(RESERVE, session.queue.reserve(session, FOREVER if session.may_wait else 0, now))
        return
    word, space, text = line.partition(b" ")
    command = (session.dialect.with_arguments if space else session.dialect.without_arguments).get(word)
    if command is None:
        command = _odd_command(line)
        if command is None:
            _refuse_line(session, line)
            return
        text = line[len(command.name) :]
    read = command.read
    if read is not None and not read(text, _ARGUMENTS):
        _refuse_arguments(session, command, line)
        return
    if command.cost and session.awaits_hangups(line):
        return
    if command.is_counted:
        session.server.counts[command.counter].value += 1
    session.budget -= command.cost
    session.settle(command, command.do(session, _ARGUMENTS, now))


def _do_line_of_user(session: Session, user: User, line: bytes, now: int) -> None:
    """`do_line` for a session with a user, which may not give every command."""
    word, space, text = line.partition(b" ")
    dialect = session.dialect
    command = (dialect.with_arguments if space else dialect.without_arguments).get(word)
    if command is None:
        if space and word == b"auth" and session.authenticate is not None:
            command = AUTH
        else:
            command = _odd_command(line)
            if command is None:
                _refuse_line(session, line)
                return
            text = line[len(command.name) :]
    read = command.read
    if read is not None and not read(text, _ARGUMENTS):
        _refuse_arguments(session, command, line)
        return
    if command.cost and session.awaits_hangups(line):
        return
    if command.is_counted:
        session.server.counts[command.counter].value += 1
    reply = refusal(session, user, command, _ARGUMENTS)
    if not reply:
        session.budget -= command.cost
        session.settle(command, command.do(session, _ARGUMENTS, now))
    elif command.has_body:
        assert _ARGUMENTS.put is not None, "the arguments of put have been read"
        session.refuse_put(_ARGUMENTS.put, reply, need(session, command, _ARGUMENTS))
    else:
        session.refuse(reply, need(session, command, _ARGUMENTS))


def _odd_command(line: bytes) -> Command | None:
    """The command on a line that is not in the table: beanstalkd recognizes some by how the line begins."""
    if line.startswith(b"quit") and b"\0" not in line:
        return QUIT
    return PAUSE_TUBE if line.startswith(b"pause-tube") else None  # no space is needed


def _refuse_arguments(session: Session, command: Command, line: bytes) -> None:
    """Answer a line whose arguments are malformed."""
    if command.has_body:
        session.refuse_malformed_put(line)
    else:
        session.reply(replies.BAD_FORMAT)


def _refuse_line(session: Session, line: bytes) -> None:
    """Answer a line that is no command. After a request of HTTP, nothing is done that follows."""
    command = session.dialect.with_arguments.get(line)
    if command is not None and command.has_body and (command is not PUT or session.closes_after_put):
        session.refuse_malformed_put(line)  # the word alone
        return
    if b"\0" in line or line.startswith(_TAKE_NO_ARGUMENTS):
        session.reply(replies.BAD_FORMAT)
        return
    session.reply(replies.UNKNOWN_COMMAND)
    if line.startswith(HTTP_METHODS):
        session.closed = session.speaks_http = True


def shown_line(dialect: Dialect, line: bytes) -> str:
    """A line as the log shows it. Of what is no command, it shows nothing: it may be a token, however it is written."""
    word, space, _ = line.partition(b" ")
    if (dialect.with_arguments if space else dialect.without_arguments).get(word) or _odd_command(line) is not None:
        return ascii(without_token(line))[2:-1]
    return "auth ..." if word == b"auth" else f"unknown command of {len(line)} bytes"
