"""A whole server in virtual time: many clients, no sockets, no sleeping. The same steps give the same bytes."""

from checking import check_broker

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import HELD, NOT_IN_MEMORY, Job
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DEADLINE_SOON, DONE, FAILED, PENDING, REPLACED, TIMED_OUT
from beanstalk_server.queue.policy import NO_POLICY, Attributes, full_name_of_limit
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import END_OF_TIME, TICK
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.server_info import ServerInfo
from beanstalk_server.wire.session import Session


class World:
    """A broker, its clients, the policies of its tubes by name, and a clock.

    The clock moves with `sleep`, and by `pace` nanoseconds when a client sends something.
    """

    def __init__(
        self,
        journal=None,
        max_job_size=65535,
        tick=TICK,
        compat="1.13",
        max_memory=0,
        shards=1,
        shard=0,
        policies=None,
        pace=1000,
    ):
        self.now = 7 * SECOND + 1234567
        self.pace = pace
        self.policies = policies or {}
        self.broker = Broker(
            journal or Journal(),
            self.now,
            tick,
            max_memory,
            shards,
            shard,
            lambda name: self.policies.get(name, NO_POLICY),
        )
        self.info = ServerInfo(max_job_size=max_job_size, compat=compat, started_at=self.now)
        places = Places(shards)
        self.info.names_tube_of_shard = lambda name: places.of_tube(name.encode()) == shard
        self.answered = []

    def connect(self, user=None, authenticate=None, **how):
        return Caller(self, user, authenticate, **how)

    def settle(self):
        """Let everything happen that needs no time to pass."""
        while self.answered or self.broker.next_event() <= self.now:
            while self.answered:
                self.answered.pop(0).go_on()
            if self.broker.next_event() <= self.now:
                self.broker.advance(self.now)

    def sleep(self, seconds):
        end = self.now + round(seconds * SECOND)
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
            self.settle()
        self.now = end

    def check(self):
        check_broker(self.broker)

    def is_idle(self):
        return self.broker.next_event() >= END_OF_TIME


class Caller:
    """One client: what it sends, and what it has been sent."""

    def __init__(self, world, user=None, authenticate=None, **how):
        self.world = world
        self.session = Session(
            world.broker, world.info, lambda: world.answered.append(self), user=user, authenticate=authenticate, **how
        )

    def send(self, data):
        """Send bytes; return what has come back by now, with anything that had come before."""
        self.world.now += self.world.pace
        self.session.receive(data, self.world.now)
        self.go_on()
        self.world.settle()
        return self.read()

    def go_on(self):
        self.session.run(self.world.now)
        while self.session.has_more:
            self.session.run(self.world.now)

    def read(self):
        return self.session.take_replies()

    def untaken(self):
        """How many replies have not been read."""
        return self.session.has_replies + len(self.session._more_replies)

    def shut_down(self):
        """Shut down the sending side; return what comes back."""
        self.session.end_input()
        self.go_on()
        self.world.settle()
        return self.read()

    def disconnect(self):
        self.session.disconnect(self.world.now)
        self.world.settle()

    def put(self, body=b"x", priority=0, delay=0, ttr=60):
        """Put a job; return its id."""
        reply = self.send(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, ttr, len(body), body))
        assert reply.startswith(b"INSERTED "), reply
        return int(reply.split()[1])

    def yaml(self, command):
        """The dictionary that a stats command answers."""
        reply = self.send(command + b"\r\n")
        assert reply.startswith(b"OK "), reply
        lines = reply.decode().split("\n")[2:-2]
        return dict(line.split(": ", 1) for line in lines)


class RecordingClient(Client):
    """A client of a broker, without a session: it records its answers."""

    __slots__ = ("answers",)

    def __init__(self, broker, counted=True):
        super().__init__()
        self.answers = []
        broker.connect(self, counted)

    def on_reserved(self, job):
        assert job.body is not NOT_IN_MEMORY
        self.answers.append(("reserved", job.id))

    def on_reserved_batch(self, jobs):
        assert all(job.body is not NOT_IN_MEMORY for job in jobs)
        self.answers.append(("batch", *[job.id for job in jobs]))

    def on_best(self, job, _rank):
        self.answers.append(("best", job.priority, job.id))

    def on_found(self, job):
        assert job.body is not NOT_IN_MEMORY
        self.answers.append(("found", job.id))

    def on_counted(self, count, missing=-1):
        self.answers.append(("counted", count) if missing < 0 else ("counted", count, missing))

    def on_put_batch(self, count, first_id, last_id):
        self.answers.append(("put batch", count, first_id, last_id))

    def on_keyed(self, job_id):
        self.answers.append(("keyed", job_id))

    def on_outcome(self, outcome):
        self.answers.append(({TIMED_OUT: "timed out", DEADLINE_SOON: "deadline soon", FAILED: "failed"}[outcome],))


def put(broker, client, priority=0, delay=0, ttr=SECOND, body=b"x", now=SECOND, key=""):
    """Put a job, under a key if there is one; return the outcome."""
    if key:
        return broker.put_with(client, Attributes(key=key), priority, delay, ttr, body, now, now)
    return broker.put(client, broker.take_id(), priority, delay, ttr, body, now, now)


def reserve_job(broker, client, job_id, now=SECOND):
    """Reserve a job; return whether it could be. If its body is not in memory, the client gets it later."""
    return broker.reserve_job(client, job_id, now) in (DONE, PENDING)


class BrokerWorld:
    """A broker with a journal, one client, a clock that `sleep` moves, and the policies of some tubes by name."""

    tube, priority, ttr = "t", 0, 3600 * SECOND  # what `put` takes if it is given nothing else

    def __init__(self, journal=None, now=SECOND, **policies):
        self.now = now
        self.policies = policies
        self.begin(journal or MemoryJournal())

    def begin(self, journal):
        self.journal = journal
        self.broker = Broker(journal, self.now, policy_of=self.policy_of)
        self.client = self.connect()

    def connect(self):
        return RecordingClient(self.broker)

    def policy_of(self, name):
        return self.policies.get(name, NO_POLICY)

    def restart(self, away=0):
        """Let another broker take over the journal after some time, as after a crash."""
        self.now += away
        self.begin(self.journal.restarted())
        self.broker.restore(self.journal.clock_offset(), self.now)
        check_broker(self.broker)

    def put_with(self, tube=None, priority=None, delay=0, ttr=None, body=b"body", **attributes):
        """Put a job; return the outcome."""
        self.broker.use(self.client, tube or self.tube)
        priority = self.priority if priority is None else priority
        ttr = ttr or self.ttr
        now = self.now
        return self.broker.put_with(self.client, Attributes(**attributes), priority, delay, ttr, body, now, now)

    def put(self, *arguments, **attributes):
        """Put a job, or replace one; return it."""
        assert self.put_with(*arguments, **attributes) in (DONE, REPLACED)
        return self.broker.jobs[self.client.answers[-1][1]]

    def reserve(self, *jobs):
        for job in jobs:
            assert self.broker.reserve_job(self.client, job.id, self.now) == DONE

    def delete(self, job):
        assert self.broker.delete(self.client, job.id, self.now) == DONE

    def sleep(self, duration):
        """Let so many nanoseconds pass."""
        end = self.now + duration
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
            check_broker(self.broker)
        self.now = end


class MemoryJournal(Journal):
    """Keeps what it is told in a dictionary, in the order of the last change."""

    keeps = True

    def __init__(self):
        self.jobs = {}

    def restarted(self):
        """The journal of the next process."""
        journal = MemoryJournal()
        journal.jobs = dict(self.jobs)
        return journal

    def clock_offset(self):
        return 1_800_000_000 * SECOND

    def load(self):
        return list(self.jobs.values())

    def put(self, job):
        self.change(job)
        return True

    def change(self, job):
        self.delete(job)
        self.jobs[job.id] = self.stored(job)

    def hold(self, held):
        self.change(held)

    def begin_group(self, group):
        self.jobs[group.id] = self.stored(group)
        return True

    def leave_group(self, group, end, job):
        self.jobs[group.id] = self.stored(group)
        if job is not None:
            self.delete(job)

    def set_limit(self, limit, count):
        for number, job in self.jobs.items():
            if job.limit and full_name_of_limit(job.limit, job.tube) == limit:
                self.jobs[number] = job.replace(limit_count=count)

    def delete(self, job):
        self.jobs.pop(job.id, None)

    def clear(self, tube_name, reserved_ids):
        kept = set(reserved_ids)
        kept.update(number for number, job in self.jobs.items() if job.state == HELD and not job.key)  # pauses
        self.jobs = {number: job for number, job in self.jobs.items() if job.tube != tube_name or number in kept}
        return True


class BreakingJournal(MemoryJournal):
    """Fails to record what happens to jobs, `breaks` times."""

    breaks = 0

    def _record(self):
        if self.breaks:
            self.breaks -= 1
            raise RuntimeError("broken")

    def change(self, job):
        self._record()
        super().change(job)

    def delete(self, job):
        self._record()
        super().delete(job)

    def forget(self, job):
        self._record()


class FullJournal(MemoryJournal):
    """Has no room for what `refuses` names: "put", "begin_group", "pause" or "clear"."""

    def __init__(self, *refuses):
        super().__init__()
        self.refuses = refuses

    def put(self, job):
        return "put" not in self.refuses and super().put(job)

    def begin_group(self, group):
        return "begin_group" not in self.refuses and super().begin_group(group)

    def pause(self, pause):
        return "pause" not in self.refuses and super().pause(pause)

    def clear(self, tube_name, reserved_ids):
        return "clear" not in self.refuses and super().clear(tube_name, reserved_ids)


class BodilessJournal(MemoryJournal):
    """Takes every body out of memory at once, and brings bodies back when the test says so."""

    def __init__(self):
        super().__init__()
        self.bodies = {}  # by job: each that was ever put
        self.fetches = []  # (jobs, on_fetched) of those that are under way

    def restarted(self):
        journal = BodilessJournal()
        journal.jobs = dict(self.jobs)
        return journal

    def restore(self, replay):
        for stored in self.load():
            job = replay.put(stored)
            if isinstance(job, Job):
                self.bodies[job] = job.body
                job.body = NOT_IN_MEMORY

    def stored(self, job):
        stored = super().stored(job)
        if isinstance(job, Job):
            stored.body = self.bodies[job]
        return stored

    def put(self, job):
        self.bodies[job] = job.body
        job.body = NOT_IN_MEMORY
        return super().put(job)

    def body_size(self, job):
        return len(self.bodies[job])

    def fetch(self, jobs, on_fetched):
        self.fetches.append((jobs, on_fetched))

    def end_fetch(self, position=0):
        """End one of the fetches under way; afterwards its bodies are out of memory again."""
        jobs, on_fetched = self.fetches.pop(position)
        for job in jobs:
            self.memory.return_body(job, self.bodies[job])
        try:
            on_fetched()
        finally:
            for job in jobs:
                self.memory.drop_body(job)
        if self.on_fetches_done:
            self.on_fetches_done()
