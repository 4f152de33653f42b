"""Lives of a binlog: processes that do random commands, and end; and the history that the next one is compared with.

What a process comes back with is compared with everything that the broker ever recorded, job by job: each job must be
as it was when it was last acknowledged, or as it was recorded after that.
"""

import asyncio
import contextlib

from checking import check_broker
from memory_disk import Crash
from virtual import RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import DELAYED, GROUP, HELD, MAX_U32, READY, Job
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.stored_job import GROUP_COUNTERS, LAST_MOMENT
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import binlog as binlogs
from harness.waiting import eventually_async

OFFSET = 1_700_000_000 * SECOND
SEGMENT = 4096
GONE = None


class Clocks:
    """The clocks of a machine."""

    def __init__(self):
        self.now = self.ended = SECOND
        self.offset = OFFSET
        self.boot = bytes(15) + b"1"
        self.all_offsets = [OFFSET]  # of this boot
        self.offsets = [OFFSET]  # that the disk may know, since the last acknowledgement
        self.is_booted = False  # since the history was compared last
        self.shifts = [0]  # by how much the last boot may have moved all times

    def step(self, rng):
        self.offset += rng.choice((-7200, -1, 1, 7200)) * SECOND
        self.offsets.append(self.offset)
        self.all_offsets.append(self.offset)

    def was_due(self, stored):
        """Whether a job came due before the last process ended."""
        if stored is GONE or stored.state != DELAYED:
            return False
        return stored.at > 0 or stored.deadline <= self.ended  # nobody knows how far the wall clock has ever gone

    def committed(self, offset):
        """A commit has returned that recorded this offset."""
        self.offsets = self.offsets[self.offsets.index(offset) :]

    def come_back(self, rng, has_crashed=False):
        """A process has ended, or the machine; the machine may boot before the next process."""
        if not self.is_booted:
            self.ended = self.now
            self.known = list(self.offsets)
        self.now += rng.randrange(100 * SECOND)
        if rng.random() < 0.5:
            self.step(rng)
        if has_crashed or rng.random() < 0.5:
            self.is_booted = True
            self.boot = rng.randbytes(16)
            self.offset += self.now
            self.now = rng.randrange(100) * SECOND
            self.offset -= self.now
        self.shifts = [offset - self.offset for offset in self.known] if self.is_booted else [0]

    def compared(self):
        """From here on, the history has the times of the present boot."""
        if self.is_booted:
            self.is_booted = False
            self.offsets = [self.offset]
            self.all_offsets = [self.offset]


class Binlog(binlogs.Binlog):
    """One whose methods a history can replace: those of a compiled class cannot be."""


class Life:
    """One process, from its start on a directory to its end."""

    def __init__(self, history, directory, rng, clocks, sync_interval=0.0):
        self.history = history
        self.clocks = clocks
        self.directory = directory
        self.rng = rng
        self.binlog = self.open(
            segment_size=SEGMENT,
            sync_interval=sync_interval,
            clock=lambda: clocks.now,
            wall_clock=lambda: clocks.now + clocks.offset,
            boot=clocks.boot,
            draw_salt=lambda: rng.getrandbits(32),
        )
        self.binlog.on_failure = self.failed
        self.failure = None

    def open(self, **options):
        return Binlog(self.directory, in_thread=self.in_thread, **options)

    @property
    def now(self):
        return self.clocks.now

    @now.setter
    def now(self, now):
        self.clocks.now = now

    def failed(self, error):
        self.failure = error

    async def in_thread(self, work):
        for _ in range(self.rng.randrange(3)):  # others go on meanwhile
            await asyncio.sleep(0)
        return work()

    def new_broker(self):
        return Broker(self.binlog, self.now)

    def start(self):
        self.broker = self.new_broker()
        self.broker.restore(self.clocks.offset, self.now)
        check_broker(self.broker)
        self.binlog._log.check()
        self.client = RecordingClient(self.broker)
        self.listener = History.Listener(self.history, self.binlog, self.broker)

    async def commit(self):
        position = self.listener.position()
        number = self.binlog._log.commit_number
        await self.binlog.commit()
        self.history.acknowledge(position)
        if self.binlog._log.commit_number > number:  # else there was nothing to write, and the disk knows of no clock
            self.clocks.committed(self.binlog._log.clock_offset)

    async def room(self):
        """Wait, as a session does before it changes something, while the binlog has no room for it."""
        for _ in range(1000):
            if self.binlog.admits == ALL or self.directory.fail:
                return
            await self.commit()
            await self.settle()
            self.now += SECOND  # after which a full disk is tried again
        raise AssertionError("the binlog admits no changes any more")

    async def settle(self):
        """Let the upkeep end."""
        await eventually_async(lambda: self.binlog._upkeep is None, "the upkeep ends")
        if self.directory.crashed:  # within the upkeep
            raise Crash
        if self.failure is not None:
            raise self.failure

    def command(self):
        """Do something that a client might ask for."""
        rng, broker, client = self.rng, self.broker, self.client
        self.now += rng.randrange(SECOND)
        if rng.random() < 0.05:
            self.clocks.step(rng)
        broker.advance(self.now)
        jobs = broker.jobs
        number = rng.choice(list(jobs)) if jobs and rng.random() < 0.95 else rng.randrange(1, 50)
        choice = rng.randrange(17)
        if choice < 4 or not jobs:
            body = rng.randbytes(rng.choice((0, 3, 100, 700, 5000 if rng.random() < 0.05 else 10)))
            delay = rng.choice((0, 0, 2 * SECOND, 1000 * SECOND))
            broker.use(client, rng.choice(("default", "tube")))
            key = f"k{rng.randrange(20)}" if rng.random() < 0.3 else ""
            put(broker, client, rng.randrange(5), delay, 60 * SECOND, body, self.now, key)
        elif choice < 7:
            broker.delete(client, number, self.now)
        elif choice == 7:
            broker.reserve_job(client, number, self.now)
        elif choice == 8:
            broker.release(client, number, rng.randrange(5), rng.choice((0, SECOND, 500 * SECOND)), self.now)
        elif choice == 9:
            broker.bury(client, number, rng.randrange(5), self.now)
        elif choice == 10:
            broker.kick(client, rng.randrange(1, 4), self.now)
        elif choice == 11:
            broker.reschedule(client, number, rng.choice((0, SECOND, 100 * SECOND)), self.now)
        elif choice == 12:
            keyed = [job for job in jobs.values() if job.key]
            if keyed:
                job = rng.choice(keyed)
                broker.use(client, job.tube.name)
                delay, body = rng.choice((0, 9 * SECOND)), rng.randbytes(20)
                fresh = Attributes(key=job.key, replaces=True, again=rng.random() < 0.5)
                broker.put_with(client, fresh, rng.randrange(5), delay, SECOND, body, self.now, self.now)
        elif choice == 13:
            broker.reserve(client, 0, self.now)
            if rng.random() < 0.1:
                broker.clear(client, "default")
        elif choice == 14:
            duration = rng.choice((0, SECOND, 100 * SECOND, MAX_U32 * SECOND))
            broker.pause(client, rng.choice(("default", "tube")), duration, self.now)
        elif choice == 15:
            broker.reprioritize(client, number, rng.randrange(5), self.now)
        elif choice == 16:
            held = list(client.reserved)
            if held:
                broker.save(client, rng.choice(held).id, rng.randbytes(rng.choice((0, 30, 700))))


class History:
    """All that was ever recorded of each job, and how much of that was acknowledged."""

    def __init__(self):
        self.jobs = {}  # id -> [(position, stored job or GONE)]
        self.clears = []  # (position, ids of the jobs that it has ended)
        self.position = 0
        self.acknowledged = 0

    def record(self, number, stored):
        self.position += 1
        self.jobs.setdefault(number, []).append((self.position, stored))

    def record_clear(self, numbers, groups):
        """All at one position: recovery finds either all jobs as they were before, or none.

        Args:
            groups: by id, with the members counted that the clear has ended.
        """
        self.position += 1
        self.clears.append((self.position, numbers))
        for number in numbers:
            self.jobs[number].append((self.position, GONE))
        for number, stored in groups.items():
            self.jobs[number].append((self.position, stored))

    def acknowledge(self, position):
        self.acknowledged = max(self.acknowledged, position)

    class Listener:
        """Listens to what a broker records in its journal."""

        def __init__(self, history, journal, broker):
            self.history = history
            put, put_batch, change, hold = journal.put, journal.put_batch, journal.change, journal.hold
            put_once = journal.put_once
            delete, clear = journal.delete, journal.clear
            begin_group, leave_group, pause = journal.begin_group, journal.leave_group, journal.pause
            ending = {}  # members that a clear has ended, by id, until their groups count them: recovery does

            def counted(group):
                stored = by_clock(journal, group)
                return stored.replace(releases=stored.releases + list(ending.values()).count(group.id))

            def heard_put(job):
                if not put(job):
                    return False
                history.record(job.id, by_clock(journal, job))
                return True

            def heard_put_batch(jobs):
                if not put_batch(jobs):
                    return False
                for job in jobs:
                    history.record(job.id, by_clock(journal, job))
                return True

            def heard_put_once(job, token):
                if not put_once(job, token):
                    return False
                history.record(job.id, by_clock(journal, job))
                history.record(token.id, by_clock(journal, token))
                return True

            def heard_change(job):
                change(job)
                history.record(job.id, by_clock(journal, job))

            def heard_hold(held):
                hold(held)
                history.record(held.id, by_clock(journal, held))

            def heard_pause(held):
                if not pause(held):
                    return False
                history.record(held.id, by_clock(journal, held))
                return True

            def heard_delete(job):
                delete(job)
                history.record(job.id, GONE)

            def heard_begin_group(group):
                if not begin_group(group):
                    return False
                history.record(group.id, by_clock(journal, group))
                return True

            def heard_leave_group(group, end, job):
                leave_group(group, end, job)
                if job is not None:
                    ending.pop(job.id, None)
                history.record(group.id, counted(group))
                if job is not None:
                    history.record(job.id, GONE)

            def heard_clear(tube_name, reserved_ids):
                if not clear(tube_name, reserved_ids):
                    return False
                tube = broker.tubes[tube_name]
                jobs = [*broker.jobs.values(), *broker.held.values()]
                gone = [job for job in jobs if job.tube is tube and not tube.is_cleared(job)]
                gone = [job for job in gone if job.id not in reserved_ids and (isinstance(job, Job) or job.key)]
                groups = {job.id: job.group() for job in gone if isinstance(job, Job)}
                groups = {job_id: group for job_id, group in groups.items() if group is not None}
                ending.update({job_id: group.id for job_id, group in groups.items()})
                ended = {group.id: counted(group) for group in groups.values()}
                history.record_clear([job.id for job in gone], ended)
                return True

            journal.put, journal.put_batch, journal.put_once = heard_put, heard_put_batch, heard_put_once
            journal.change, journal.hold, journal.pause = heard_change, heard_hold, heard_pause
            journal.delete, journal.clear = heard_delete, heard_clear
            journal.begin_group, journal.leave_group = heard_begin_group, heard_leave_group

        def position(self):
            return self.history.position

    def compare(self, life):
        """Compare what was recovered with what was recorded; the history goes on from there."""
        now = life.now
        broker = life.broker
        jobs = {job.id: job for table in (broker.jobs, broker.held, broker.groups.by_id) for job in table.values()}
        recovered = {}
        for number, versions in self.jobs.items():
            job = jobs.get(number)
            found = GONE if job is None else by_clock(life.binlog, job)
            possible = [stored for position, stored in versions if position >= self.acknowledged]
            before = [stored for position, stored in versions if position < self.acknowledged or not self.acknowledged]
            last = [stored for position, stored in versions if position <= self.acknowledged]
            possible += last[-1:] if last else [GONE]
            # What came due before the last boot may have been written again as ready.
            possible += [
                stored.replace(state=READY, deadline=0, at=0) for stored in possible if life.clocks.was_due(stored)
            ]
            shifted = [moved(stored, shift) for stored in possible for shift in life.clocks.shifts]
            matching = [stored for stored in shifted if same(found, stored, now, life.clocks.offset)]
            assert matching, (found, possible, before[-1:])
            # A job that is due stays delayed in the history: setting the clock back across a boot undoes that.
            is_due = found is not GONE and matching[0].state != found.state
            kept = matching[0] if is_due else found
            if kept is not GONE and kept.ready_since > now:  # the wall clock was set back; what follows notes now
                kept = kept.replace(ready_since=now)
            recovered[number] = kept
        for number in jobs:
            assert number in self.jobs, f"job {number} was never recorded"
        for position, numbers in self.clears:
            if any(number in jobs for number in numbers):  # so it never happened
                assert position > self.acknowledged
                for number in numbers:
                    kept = self.jobs[number][0][0] > self.acknowledged or number in jobs
                    assert kept, f"half a clear: job {number} is gone"
        self.clears.clear()
        given = [number for number, versions in self.jobs.items() if versions[0][0] <= self.acknowledged]
        assert life.broker.next_id > max(given, default=0), "an id is given twice"
        # What was not acknowledged and has not survived never happened; what has survived counts.
        self.position += 1
        self.jobs = {number: [(self.position, recovered[number])] for number in jobs} | {
            number: [(self.position, GONE)] for number in given if number not in jobs
        }
        self.acknowledged = self.position
        life.clocks.compared()


def by_clock(journal, job):
    """A job as it is stored, but with the times of the server's clock."""
    return moved(journal.stored(job), -journal.clock_offset())


def moved(stored, shift):
    """The same job, so much later."""
    if stored is GONE:
        return GONE
    is_moved = stored.state in (DELAYED, HELD) and not stored.at and stored.deadline != LAST_MOMENT
    deadline = stored.deadline + (shift if is_moved else 0)
    ready_since = stored.ready_since + shift if stored.ready_since else 0
    return stored.replace(created_at=stored.created_at + shift, deadline=deadline, ready_since=ready_since)


def same(found, recorded, now, offset=0):
    """Whether a recovered job is as it was recorded."""
    if found is GONE or recorded is GONE:
        return found is recorded
    if recorded.state == HELD:  # nothing else of it is of use to anybody
        names = ("id", "tube", "key", "state", "deadline")
        is_same = not recorded.is_token() or found.token_job() == recorded.token_job()
        return is_same and all(getattr(found, name) == getattr(recorded, name) for name in names)
    if recorded.state == GROUP:
        names = ("id", "key", "state", "created_at", *GROUP_COUNTERS.values())
        return all(getattr(found, name) == getattr(recorded, name) for name in names)
    if recorded.state == DELAYED and recorded.deadline - (offset if recorded.at else 0) <= now:
        recorded = recorded.replace(state=READY, deadline=0, at=0)
    # A reservation need not be recorded, so a job may live longer, but it never expires early. (What was recorded is
    # still to come if the wall clock has been set back across a boot.)
    if recorded.ready_since and min(recorded.ready_since, now) > found.ready_since:
        return False
    # These are recorded with the job's next change, or when it is written again.
    if not (recorded.reserves <= found.reserves and recorded.timeouts <= found.timeouts):
        return False
    later = {"reserves": 0, "timeouts": 0, "ready_since": 0}
    # Only a job that is changed or put under a policy is recorded with the terms that it has got.
    later["has_terms"] = recorded.has_terms
    return found.replace(**later) == recorded.replace(**later)


async def live(life, commands, commit_chance=0.4):
    """Do this many commands, with commits now and then; leave when the machine stops."""
    rng = life.rng
    commit = None
    for _ in range(commands):
        if life.binlog.admits != ALL:
            if commit is not None:
                await commit
                commit = None
            await life.room()
        life.command()
        if life.failure is not None:
            if commit is not None:
                await asyncio.gather(commit, return_exceptions=True)  # it fails too
            raise life.failure
        if commit is None or commit.done():
            if commit is not None:
                commit.result()
            commit = asyncio.ensure_future(life.commit()) if rng.random() < commit_chance else None
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if life.binlog.sync_interval > 0 and rng.random() < 0.1:
            life.binlog._begin_sync()  # what its timer does
    if commit is not None:
        await commit
    await life.commit()
    await life.settle()


def run_life(history, directory, rng, clocks, commands, kind=Life, **options):
    """Run one process, with its commands, until it ends or the machine stops; return it."""
    life = kind(history, directory, rng, clocks, **options)

    async def work():
        life.start()
        history.compare(life)
        await live(life, commands)
        check_broker(life.broker)
        life.binlog._log.check()
        assert_bound(life)
        if rng.random() < 0.5:
            await life.binlog.close()

    with asyncio.Runner() as runner, contextlib.suppress(Crash):
        runner.get_loop().set_exception_handler(ignore_crash)
        runner.run(work())
    return life


def ignore_crash(loop, context):
    """Ignore the tasks that the machine interrupted when it stopped."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


def assert_bound(life):
    log = life.binlog._log
    largest = max([segment.size for segment in log.segments] + [SEGMENT])
    files = len(log.segments) + len(log.room.spares)
    used = sum(len(node.data) for name, node in life.directory.nodes.items() if name not in ("stopped", "started"))
    not_worth_cleaning = largest >> 4
    assert used <= 2 * log.room.live_size + 2 * largest + not_worth_cleaning + 256 * files, log.room.next_step(True)
