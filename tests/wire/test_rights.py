"""Every command, asked by users with any rights about any tube: compared with a small model of the rules.

Two worlds have the same history. In one of them a client with a user asks; in its twin, one without a user gives the
same commands, but only those that the model allows. So an allowed command must do what it always does, and a refused
one nothing at all.
"""

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.wire.commands import COUNTERS, EXTENSIONS, PROTOCOL
from beanstalk_server.wire.server_info import Count

ROWS = {row.name: row for row in PROTOCOL + EXTENSIONS}
FORBIDDEN = b"FORBIDDEN\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"

# The model


def words(text):
    return text.split()


RIGHTS = {
    "produce": words(
        "put put-keyed replace-keyed put-with put-batch cancel cancel-keyed reschedule reschedule-keyed "
        "reprioritize reprioritize-keyed"
    ),
    "consume": words(
        "watch reserve reserve-with-timeout reserve-batch reserve-job delete release bury touch "
        "delete-batch release-batch touch-batch give-back save"
    ),
    "inspect": words(
        "peek peek-ready peek-delayed peek-buried peek-keyed stats stats-job stats-tube list-jobs stats-group"
    ),
    "admin": words("kick kick-job pause-tube clear-tube redrive list-clients move-jobs drain undrain cancel-group"),
    "any": ["use"],
    "none": words(
        "ignore quit cancel-reserve reserve-mode touch-all list-tubes list-tube-used list-tubes-watched stats-tubes "
        "list-extensions client-name"
    ),
}
RIGHT = {command: right for right, commands in RIGHTS.items() for command in commands}
ABOUT_A_JOB = words(
    "cancel reschedule reprioritize reserve-job delete release give-back save bury touch peek stats-job kick-job"
)
ABOUT_A_NAMED_TUBE = words(
    "use watch stats-tube pause-tube clear-tube redrive list-jobs move-jobs stats-group cancel-group"
)
ABOUT_EVERY_TUBE = words("stats list-clients drain undrain")
ABOUT_THE_WATCHED_TUBES = words("reserve reserve-with-timeout reserve-batch")
MAY_ANSWER_NOT_FOUND = [
    *ABOUT_A_JOB,
    *words("stats-tube pause-tube clear-tube redrive list-jobs move-jobs cancel-keyed reschedule-keyed peek-keyed"),
    *words("stats-group cancel-group reprioritize-keyed"),
]


@dataclass
class Asked:
    """A command, and what its line says."""

    name: str
    line: bytes
    tube: str
    job_id: int
    to: str


def rights_to(patterns, tube):
    return {right for right, globs in patterns.items() if any(fnmatchcase(tube, each) for each in globs)}


def refusal(patterns, asked, used, watched, tube_of):
    """The reply to a command that a user with these patterns may not give; None if it may.

    Args:
        used, watched: the tubes that its client uses and watches.
        tube_of: the tubes of the jobs there are, by id.
    """
    right = RIGHT[asked.name]
    if right == "none":
        return None
    if asked.name in ABOUT_THE_WATCHED_TUBES:
        return None if watched else FORBIDDEN
    if asked.name in ABOUT_EVERY_TUBE:
        return None if "*" in patterns[right] else FORBIDDEN
    if asked.name in ABOUT_A_JOB:
        if asked.job_id not in tube_of:
            return NOT_FOUND
        tube = tube_of[asked.job_id]
    else:
        tube = asked.tube if asked.name in ABOUT_A_NAMED_TUBE else used
    rights = rights_to(patterns, tube)
    if asked.name == "move-jobs" and right in rights:
        rights = rights_to(patterns, asked.to)
    if right in rights or (right == "any" and rights):
        homes = [each for label, each in (("group", asked.tube), ("after", asked.to)) if label in asked.line.decode()]
        is_put = asked.name == "put-with"
        return FORBIDDEN if is_put and not all("produce" in rights_to(patterns, home) for home in homes) else None
    return FORBIDDEN if rights or asked.name not in MAY_ANSWER_NOT_FOUND else NOT_FOUND


# What is asked

TUBES = ["default", "a", "b", "ab", "c"]
BODY = b"\r\nbody\r\n"
MAX_JOB_SIZE = 8
TOO_BIG = b"9\r\nbig body!\r\n"

LINES = {
    "put": [b"put 0 0 60 4" + BODY, b"put 5 1 60 4" + BODY, b"put 0 0 60 " + TOO_BIG],
    "put-keyed": [b"put-keyed {key} 0 0 60 4" + BODY, b"put-keyed {key} 0 1 60 4" + BODY],
    "replace-keyed": [b"replace-keyed {key} 0 1 60 4" + BODY, b"replace-keyed {key} 0 0 60 " + TOO_BIG],
    "put-with": [
        b"put-with 0 0 60 4 tries=2" + BODY,
        b"put-with 0 0 60 4 ttl=1 key={key} replace=1" + BODY,
        b"put-with 0 0 60 4 group={tube}/g" + BODY,
        b"put-with 0 0 60 4 group={tube} after={to}/g:wait" + BODY,
    ],
    "put-batch": [b"put-batch 0 0 60 9\r\n4\r\nbody\r\n\r\n"],
    "stats-group": [b"stats-group {tube}/g", b"stats-group {tube}"],
    "cancel-group": [b"cancel-group {tube}/g", b"cancel-group {tube}"],
    "cancel": [b"cancel {id}"],
    "cancel-keyed": [b"cancel-keyed {key}"],
    "reschedule": [b"reschedule {id} 1"],
    "reschedule-keyed": [b"reschedule-keyed {key} 1"],
    "reprioritize": [b"reprioritize {id} 1"],
    "reprioritize-keyed": [b"reprioritize-keyed {key} 1"],
    "reserve": [b"reserve"],
    "reserve-with-timeout": [b"reserve-with-timeout 0"],
    "reserve-batch": [b"reserve-batch 2 0"],
    "reserve-job": [b"reserve-job {id}"],
    "delete": [b"delete {id}"],
    "release": [b"release {id} 3 0", b"release {id} 3 1"],
    "give-back": [b"give-back {id}"],
    "save": [b"save {id} 4" + BODY, b"save {id} " + TOO_BIG],
    "bury": [b"bury {id} 3"],
    "touch": [b"touch {id}"],
    "peek": [b"peek {id}"],
    "peek-ready": [b"peek-ready"],
    "peek-delayed": [b"peek-delayed"],
    "peek-buried": [b"peek-buried"],
    "peek-keyed": [b"peek-keyed {key}"],
    "stats": [b"stats"],
    "stats-job": [b"stats-job {id}"],
    "stats-tube": [b"stats-tube {tube}"],
    "use": [b"use {tube}"],
    "watch": [b"watch {tube}"],
    "ignore": [b"ignore {tube}"],
    "kick": [b"kick 1", b"kick 9"],
    "kick-job": [b"kick-job {id}"],
    "pause-tube": [b"pause-tube {tube} 0", b"pause-tube {tube} 1", b"pause-tube{tube} 1"],
    "clear-tube": [b"clear-tube {tube}"],
    "redrive": [b"redrive {tube} 9"],
    "list-clients": [b"list-clients"],
    "move-jobs": [b"move-jobs {tube} ready {to} 1", b"move-jobs {tube} delayed {to} 9"],
    "drain": [b"drain"],
    "undrain": [b"undrain"],
    "list-tubes": [b"list-tubes"],
    "list-jobs": [b"list-jobs {tube} ready 0 9", b"list-jobs {tube} delayed 0 1", b"list-jobs {tube} reserved 1 9"],
    "stats-tubes": [b"stats-tubes - 9"],
    "client-name": [b"client-name w/h/1"],
    "list-extensions": [b"list-extensions"],
    "list-tube-used": [b"list-tube-used"],
    "list-tubes-watched": [b"list-tubes-watched"],
}
"""How each command may be given. quit, which ends a conversation, has a test of its own."""


def test_every_command_is_asked():
    others = words("quit cancel-reserve reserve-mode delete-batch release-batch touch-batch touch-all")
    assert {*LINES, *others} == set(ROWS) == set(RIGHT)


@st.composite
def commands(draw, names=tuple(LINES)):
    name = draw(st.sampled_from(names))
    tube = draw(st.sampled_from(TUBES))
    to = draw(st.sampled_from(TUBES))
    job_id = draw(st.integers(1, 12))
    line = draw(st.sampled_from(LINES[name]))
    line = line.replace(b"{tube}", tube.encode()).replace(b"{id}", b"%d" % job_id)
    line = line.replace(b"{to}", to.encode())
    line = line.replace(b"{key}", draw(st.sampled_from([b"k", b"l"])))
    return Asked(name, line if line.endswith(b"\r\n") else line + b"\r\n", tube, job_id, to)


globs = st.lists(st.sampled_from([*TUBES, "*", "a*", "?", "[bc]", "none"]), max_size=2)
users = st.fixed_dictionaries({"produce": globs, "consume": globs, "inspect": globs, "admin": globs})
steps = st.lists(
    st.one_of(
        st.tuples(st.just("asks"), commands()),
        st.tuples(st.just("asks"), commands()),
        st.tuples(
            st.just("neighbour"), commands(words("use put put-keyed put-with watch reserve-with-timeout bury delete"))
        ),
        st.tuples(st.just("changes"), users),
        st.tuples(st.just("sleeps"), st.sampled_from([0.5, 1.5, 70])),
    ),
    min_size=20,
    max_size=60,
)


class Side:
    """One of the two worlds: a client that asks, and a neighbour that may do everything."""

    def __init__(self, user=None):
        self.world = World(max_job_size=MAX_JOB_SIZE)
        self.neighbour = self.world.connect()
        self.client = self.world.connect(user)
        for client in (self.neighbour, self.client):
            client.session.forbid_waiting()
        for tube in TUBES:
            self.neighbour.send(b"use %b\r\nput 0 0 60 4\r\nbody\r\n" % tube.encode())
            self.neighbour.send(b"put-keyed k 0 9 60 4\r\nbody\r\n")
        self.world.info.counts[:] = [Count() for _ in range(COUNTERS)]

    def state(self):
        """All that commands can change, but for how often they have been given."""
        broker, now = self.world.broker, self.world.now
        session = self.client.session
        return [
            *[(job.id, *fields(broker.job_statistics(job.id, now)), job.body) for job in broker.jobs.values()],
            *[(name, fields(broker.tube_statistics(name, now))) for name in broker.tubes],
            fields(broker.server_statistics()),
            (session.use.name, sorted(tube.name for tube in session.watched), session.producer, session.worker),
            broker.next_id,
        ]

    def pass_time_until(self, other):
        self.world.now = other.world.now
        self.world.settle()

    def send(self, line):
        reply = self.client.send(line)
        self.world.check()
        return reply


@cache
def names_in(kind):
    return [name for name in dir(kind) if not name.startswith("_")]


def attributes(of):
    return {name: getattr(of, name) for name in names_in(type(of))}


def fields(statistics):
    """Figures, and what is told of a job."""
    found = attributes(statistics)
    job = found.pop("job", None)
    found.pop("terms", None)
    found |= attributes(found.pop("counters", None))
    found.pop("files", None)
    told = [] if job is None else [job.tube.name, job.state, job.priority, job.delay, job.ttr, job.key, job.reserves]
    return [*told, *sorted((name, value) for name, value in found.items() if not callable(value))]


def uncounted(reply):
    """A reply without the figures that count commands."""
    lines = reply.split(b"\n")
    return lines if not reply.startswith(b"OK ") else [line for line in lines[1:] if not line.startswith(b"cmd-")]


def visible(reply, patterns):
    """What is left of a reply to list-tubes for a user."""
    names = [name.removesuffix("\n\r\n") for name in reply.decode().split("\n- ")[1:]]
    if any("*" in globs for globs in patterns.values()):
        return names
    return [name for name in names if rights_to(patterns, name)]


def visible_entries(reply, patterns):
    """What is left of a reply to stats-tubes for a user."""
    entries = reply.decode().split("\n- ")[1:]
    return [entry for entry in entries if "inspect" in rights_to(patterns, entry.split('"')[1])]


@settings(max_examples=examples(40))
@given(first=users, steps=steps)
def test_a_user_may_do_what_the_rules_allow_and_what_they_refuse_changes_nothing(first, steps):
    patterns = first
    asking, twin = Side(User("u", **first)), Side()
    given = Counter()

    def withdraw():
        for tube in [tube.name for tube in twin.client.session.watched]:
            if "consume" not in rights_to(patterns, tube):
                twin.world.broker.unwatch(twin.client.session, tube)

    withdraw()
    for what, how in steps:
        if what == "sleeps":
            asking.world.sleep(how)
            twin.world.sleep(how)
        elif what == "changes":
            patterns = how
            asking.client.session.change_user(User("u", **how))
            withdraw()
        elif what == "neighbour":
            assert asking.neighbour.send(how.line) == twin.neighbour.send(how.line)
            given[how.name] += 1
        else:
            session = twin.client.session
            tube_of = {job.id: job.tube.name for job in twin.world.broker.jobs.values()}
            watched = [tube.name for tube in session.watched]
            refused = refusal(patterns, how, session.use.name, watched, tube_of)
            given[how.name] += 1
            reply = asking.send(how.line)
            if refused is not None:
                assert reply == refused, how
                twin.pass_time_until(asking)
            elif how.name == "list-tubes":
                assert reply.startswith(b"OK %d\r\n" % (len(reply) - len(b"OK \r\n\r\n") - len(reply.split()[1])))
                assert visible(reply, {"any": ["*"]}) == visible(twin.send(how.line), patterns)
            elif how.name == "stats-tubes":
                found, expected = (
                    visible_entries(reply, {"inspect": ["*"]}),
                    visible_entries(twin.send(how.line), patterns),
                )
                assert [entry.rstrip() for entry in found] == [entry.rstrip() for entry in expected]
            else:
                assert uncounted(reply) == uncounted(twin.send(how.line)), how
        for found, expected in zip(asking.state(), twin.state(), strict=True):
            assert found == expected, (what, how)
    counts = asking.world.info.counts
    assert {name: counts[row.counter].value for name, row in ROWS.items() if row.is_counted} == {
        name: given[name] for name, row in ROWS.items() if row.is_counted
    }


# What a neighbour does in tubes that are none of the user's business

hidden = ["b", "c", "default"]
mine = {"produce": ["a"], "consume": ["ab", "a"], "inspect": ["a*"], "admin": ["a"]}


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("asks"), commands()),
            st.tuples(
                st.just("neighbour"),
                st.sampled_from(hidden).flatmap(
                    lambda tube: st.sampled_from(
                        [
                            b"use %b\r\n",
                            b"watch %b\r\n",
                            b"use %b\r\nput 0 0 60 4\r\nmine\r\n",
                            b"use %b\r\nput 0 1 60 4\r\nmine\r\n",
                            b"pause-tube %b 1\r\n",
                            b"clear-tube %b\r\n",
                            b"watch %b\r\nreserve-with-timeout 0\r\n",
                            b"put-with 0 0 60 4 group=%b/g\r\nmine\r\n",
                            b"put-with 0 0 60 4 after=%b:wait\r\nmine\r\n",
                            b"cancel-group %b/g\r\n",
                        ]
                    ).map(lambda line: line.replace(b"%b", tube.encode()))
                ),
            ),
        ),
        max_size=40,
    )
)
def test_nothing_tells_a_user_what_there_is_in_tubes_to_which_it_has_no_right(steps):
    """In one world the neighbour works; in the other it only uses up ids. What the user is told is the same."""
    busy, idle = Side(User("u", **mine)), Side(User("u", **mine))
    for what, how in steps:
        if what == "neighbour":
            busy.neighbour.send(how)
            idle.world.broker.next_id = busy.world.broker.next_id
            idle.pass_time_until(busy)
        else:
            told, expected = busy.send(how.line), idle.send(how.line)
            if how.name == "list-tubes":  # the order depends on all tubes
                told, expected = sorted(told.split()), sorted(expected.split())
            assert told == expected, how
