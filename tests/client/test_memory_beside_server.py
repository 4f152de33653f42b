"""The queue in memory beside a real server, both in virtual time: the same script of calls, the same answers."""

from beanstalk_client.job import Job
from beanstalk_client.memory import MemoryQueue
from beanstalk_client.tasks import Tasks
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import World
from virtual_client import connect

from beanstalk_server.queue.units import SECOND

TUBE = "default"

KEYS = ("a", "b")

delays = st.sampled_from([0, 0, 3, 10])
priorities = st.sampled_from([5, 65536])
keys = st.sampled_from(KEYS)
which = st.integers(0, 7)

STEPS = st.one_of(
    st.tuples(st.just("put"), priorities, delays),
    st.tuples(st.just("put_with"), priorities, delays, keys, st.booleans(), st.sampled_from([0, 2]), delays),
    st.tuples(st.just("put_at"), st.integers(-5, 20)),
    st.tuples(st.just("put_demanding"), st.sampled_from([0, 1, 2]), st.sampled_from([0, 4]), st.sampled_from([0, 5])),
    st.tuples(st.just("cancel"), which),
    st.tuples(st.just("cancel_keyed"), keys),
    st.tuples(st.just("reserve")),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("release"), which, priorities, delays),
    st.tuples(st.just("bury"), which, priorities),
    st.tuples(st.just("kick_job"), which),
    st.tuples(st.just("kick"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1.01, 3.01, 7.01, 30.01])),  # never just at the end of a tick
)


class Real:
    """A server in virtual time."""

    def __init__(self):
        self.world = World()
        self.client = connect(self.world)
        self.began = 1_900_000_000.0
        offset = round(self.began * SECOND) - self.world.now
        self.world.info.clock_offset = lambda: offset
        self.moment = self.began

    def sleep(self, seconds):
        self.world.sleep(seconds)
        self.moment += seconds

    def close(self):
        self.client.close()
        self.world.check()


class Fake:
    """A queue in memory."""

    def __init__(self):
        self.queue = MemoryQueue(Tasks(), now=1_900_000_000.0)
        self.client = self.queue.client(TUBE)

    @property
    def moment(self):
        return self.queue.now

    def sleep(self, seconds):
        self.queue.advance(seconds)

    def close(self):
        pass


FIELDS = ("id", "tube", "state", "pri", "age", "delay", "ttr", "reserves", "releases", "buries", "kicks", "timeouts")


def follow(side, script):
    """What a queue answers to each step of a script, and what it says of its jobs behind it."""
    told, ids = [], []
    client = side.client
    for name, *arguments in script:
        chosen = (
            ids[arguments[0] % len(ids)] if ids and name in ("cancel", "delete", "release", "bury", "kick_job") else 0
        )
        try:
            answer = _do(side, client, name, arguments, chosen, ids)
        except Exception as error:
            answer = type(error).__name__
        told.append((name, answer))
        told.append([_look(client, job_id) for job_id in ids])
    return told


def _do(side, client, name, arguments, chosen, ids):
    if name == "put":
        priority, delay = arguments
        ids.append(client.put("x", priority, delay, 1000))
        return ids[-1]
    if name == "put_with":
        priority, delay, key, replace, hold, _ = arguments
        made = client.put_with("x", priority, delay, 1000, key=key, replace=replace, hold=hold)
        if made not in ids:
            ids.append(made)
        return made
    if name == "put_at":
        ids.append(client.put_with("x", at=side.moment + arguments[0] + 0.5, ttr=1000))
        return ids[-1]
    if name == "put_demanding":
        tries, backoff, ttl = arguments
        ids.append(client.put_with("x", tries=tries, backoff=backoff, ttl=ttl, ttr=1000))
        return ids[-1]
    if name == "cancel_keyed":
        return client.cancel_keyed(arguments[0])
    if name == "reserve":
        job = client.reserve(0)
        return job.id
    if name == "kick":
        return client.kick(*arguments)
    if name == "pass":
        return side.sleep(*arguments)
    if name == "release":
        return client.release(Job(chosen, ""), arguments[1], arguments[2])
    if name == "bury":
        return client.bury(Job(chosen, ""), arguments[1])
    return getattr(client, name)(chosen)


def _look(client, job_id):
    try:
        found = client.stats_job(job_id)
    except Exception as error:
        return type(error).__name__
    return {name: found[name] for name in FIELDS}


@settings(max_examples=examples(100))
@given(st.lists(STEPS, max_size=25))
def test_the_queue_in_memory_answers_as_a_server_does(script):
    answers = []
    for side in (Real(), Fake()):
        answers.append(follow(side, script))
        side.close()
    assert answers[0] == answers[1]
