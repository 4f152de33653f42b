"""A broker written to be obviously right: lists, linear searches, no cleverness. The real one must agree with it.

Time is as coarse as the wheel's: what has a deadline happens at the first tick that is not before it, in the order in
which the deadlines were set.
"""

from dataclasses import dataclass, field

from beanstalk_server.queue.interface import FOREVER
from beanstalk_server.queue.outcome import (
    DEADLINE_SOON,
    DONE,
    EXISTS,
    NOT_FOUND,
    NOT_IGNORED,
    PENDING,
    REPLACED,
    TIMED_OUT,
    TOO_LATE,
)

SAFETY_MARGIN = 1_000_000_000


@dataclass(eq=False)
class ModelJob:
    id: int
    priority: int
    delay: int
    ttr: int
    tube: str
    state: str = "new"
    client: "ModelClient | None" = None
    deadline: int = 0
    in_safety_margin: bool = False
    key: str = ""
    order: int = 0  # of the last thing that happened to it: of setting its deadline, of being buried
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


@dataclass(eq=False)
class ModelClient:
    use: str = "default"
    watched: list = field(default_factory=lambda: ["default"])
    held: list = field(default_factory=list)
    batch: int = 0
    waiting: int = 0  # since when, as an order; 0 while it is not
    until: int = 0
    answers: list = field(default_factory=list)


class Model:
    def __init__(self, tick):
        self.tick = tick
        self.jobs = []
        self.clients = []
        self.paused = {}  # tube -> (end, order)
        self.deletes = 0
        self.order = 0

    def next_order(self):
        self.order += 1
        return self.order

    def find(self, job_id):
        return next((job for job in self.jobs if job.id == job_id), None)

    def of(self, tube, state):
        return [job for job in self.jobs if job.tube == tube and job.state == state]

    def tubes(self):
        names = {"default"} | {job.tube for job in self.jobs}
        for client in self.clients:
            names |= {client.use, *client.watched}
        return names

    # What clients do

    def put(self, client, job_id, priority, delay, ttr, now, key=""):
        job = ModelJob(job_id, priority, delay, ttr, client.use, key=key)
        self.jobs.append(job)
        self.ready_or_delayed(job, delay, now)

    def find_keyed(self, tube, key):
        return next((job for job in self.jobs if job.tube == tube and job.key == key), None)

    def put_keyed(self, client, job_id, key, replaces, priority, delay, ttr, now):
        job = self.find_keyed(client.use, key)
        client.answers.append(("keyed", job.id if job else job_id))
        if job is None:
            self.put(client, job_id, priority, delay, ttr, now, key)
            return DONE
        if not replaces:
            return EXISTS
        if job.client is not None:
            return TOO_LATE
        job.priority, job.delay, job.ttr = priority, delay, ttr
        self.ready_or_delayed(job, delay, now)
        return REPLACED

    def cancel(self, job_id):
        job = self.find(job_id)
        if job is None or job.state != "delayed":
            return NOT_FOUND if job is None else TOO_LATE
        self.jobs.remove(job)
        return DONE

    def reschedule(self, job_id, delay, now):
        job = self.find(job_id)
        if job is None or job.state != "delayed":
            return NOT_FOUND if job is None else TOO_LATE
        job.delay = delay
        self.ready_or_delayed(job, delay, now)
        return DONE

    def clear(self, client, tube):
        if tube not in self.tubes():
            return NOT_FOUND
        cleared = [job for job in self.jobs if job.tube == tube and job.state != "reserved"]
        for job in cleared:
            self.jobs.remove(job)
        client.answers.append(("cleared", len(cleared)))
        return DONE

    def reserve(self, client, timeout, now):
        job = self.reserve_best(client, now)
        if job is None:
            return self.wait(client, timeout, 0, now)
        client.answers.append(("reserved", job.id))
        return DONE

    def reserve_batch(self, client, limit, timeout, now):
        batch = self.best_batch(client, limit, now)
        if not batch:
            return self.wait(client, timeout, limit, now)
        client.answers.append(("batch", *batch))
        return DONE

    def best_batch(self, client, limit, now):
        job_ids = []
        while len(job_ids) < limit and (job := self.reserve_best(client, now)):
            job_ids.append(job.id)
        return job_ids

    def ready_or_delayed(self, job, delay, now):
        job.client = None
        job.in_safety_margin = False
        if delay:
            job.state, job.deadline, job.order = "delayed", now + delay, self.next_order()
        else:
            job.state = "ready"
            self.match(now)

    def reserve_best(self, client, now):
        ready = [
            job
            for job in self.jobs
            if job.state == "ready" and job.tube in client.watched and job.tube not in self.paused
        ]
        if not ready:
            return None
        job = min(ready, key=lambda job: (job.priority, job.id))
        self.hold(job, client, now)
        return job

    def hold(self, job, client, now):
        job.state, job.client = "reserved", client
        job.reserves += 1
        client.held.append(job)
        self.set_time_to_run(job, now)

    def set_time_to_run(self, job, now):
        job.in_safety_margin = job.ttr <= SAFETY_MARGIN
        job.deadline = now + job.ttr
        job.order = self.next_order()

    def wait(self, client, timeout, batch, now):
        if any(job.in_safety_margin for job in client.held):
            return DEADLINE_SOON
        if timeout == 0:
            return TIMED_OUT
        client.waiting, client.batch = self.next_order(), batch
        client.until = 0 if timeout == FOREVER else now + timeout
        return PENDING

    def match(self, now):
        """Give ready jobs to waiting clients, as long as there is a pair."""
        while True:
            pairs = [
                (job.priority, job.id, client.waiting, job, client)
                for job in self.jobs
                for client in self.clients
                if job.state == "ready"
                and client.waiting
                and job.tube in client.watched
                and job.tube not in self.paused
            ]
            if not pairs:
                return
            *_, job, client = min(pairs, key=lambda pair: pair[:3])
            client.waiting = 0
            if client.batch:
                client.answers.append(("batch", *self.best_batch(client, client.batch, now)))
            else:
                self.hold(job, client, now)
                client.answers.append(("reserved", job.id))

    def drop(self, job):
        """The client that held it holds it no longer."""
        if job.client is not None:
            job.client.held.remove(job)
            job.client = None
            job.in_safety_margin = False

    def reserve_job(self, client, job_id, now):
        job = self.find(job_id)
        if job is None or job.state == "reserved":
            return NOT_FOUND
        self.hold(job, client, now)
        client.answers.append(("reserved", job.id))
        return DONE

    def held_by(self, client, job_id):
        job = self.find(job_id)
        return job if job is not None and job.client is client else None

    def delete(self, client, job_id):
        job = self.find(job_id)
        if job is None or (job.state == "reserved" and job.client is not client):
            return NOT_FOUND
        self.drop(job)
        self.jobs.remove(job)
        return DONE

    def release(self, client, job_id, priority, delay, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.drop(job)
        job.priority, job.delay = priority, delay
        job.releases += 1
        self.ready_or_delayed(job, delay, now)
        return DONE

    def bury(self, client, job_id, priority):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.drop(job)
        job.priority, job.state, job.order = priority, "buried", self.next_order()
        job.buries += 1
        return DONE

    def touch(self, client, job_id, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.set_time_to_run(job, now)
        return DONE

    def kick(self, client, bound, now):
        kicked = sorted(self.of(client.use, "buried"), key=lambda job: job.order)
        if not kicked:
            kicked = sorted(self.of(client.use, "delayed"), key=lambda job: (job.deadline, job.id))
        for job in kicked[:bound]:
            self.kick_job(job.id, now)
        client.answers.append(("kicked", len(kicked[:bound])))
        return DONE

    def kick_job(self, job_id, now):
        job = self.find(job_id)
        if job is None or job.state not in ("buried", "delayed"):
            return NOT_FOUND
        job.kicks += 1
        self.ready_or_delayed(job, 0, now)
        return DONE

    def peek(self, client, jobs):
        """Show the client the first of these jobs."""
        if not jobs:
            return NOT_FOUND
        client.answers.append(("found", jobs[0].id))
        return DONE

    def next_jobs(self, tube, state):
        """The jobs of a tube in one state, as peek-ready, peek-delayed and peek-buried order them."""
        orders = {
            "ready": lambda job: (job.priority, job.id),
            "delayed": lambda job: (job.deadline, job.id),
            "buried": lambda job: job.order,
        }
        return sorted(self.of(tube, state), key=orders[state])

    def watch(self, client, tube):
        if tube not in client.watched:
            client.watched.append(tube)

    def ignore(self, client, tube):
        if tube not in client.watched:
            return DONE
        if len(client.watched) == 1:
            return NOT_IGNORED
        client.watched.remove(tube)
        return DONE

    def unwatch(self, client, tube):
        if tube in client.watched:
            client.watched.remove(tube)

    def pause(self, tube, duration, now):
        if tube not in self.tubes():
            return NOT_FOUND
        self.paused.pop(tube, None)
        if duration:
            self.paused[tube] = (now + duration, self.next_order())
        self.match(now)
        return DONE

    def disconnect(self, client, now):
        client.waiting = 0
        self.clients.remove(client)
        for job in list(client.held):
            self.drop(job)
            self.ready_or_delayed(job, 0, now)

    # Time

    def forget_pauses(self):
        """A tube that is gone takes its pause with it."""
        self.paused = {tube: pause for tube, pause in self.paused.items() if tube in self.tubes()}

    def events(self):
        """(tick, order, what, whom) of everything that time will do."""
        found = []
        for job in self.jobs:
            if job.state == "delayed":
                found.append((job.deadline, job.order, self.on_delay_over, job))
            elif job.state == "reserved":
                deadline = job.deadline if job.in_safety_margin else job.deadline - SAFETY_MARGIN
                found.append((deadline, job.order, self.on_time_running_out, job))
        for client in self.clients:
            if client.waiting and client.until:
                found.append((client.until, client.waiting, self.on_timeout, client))
        for tube, (end, order) in self.paused.items():
            found.append((end, order, self.on_unpause, tube))
        return [(-(-deadline // self.tick), order, what, whom) for deadline, order, what, whom in found]

    def sleep(self, now, end):
        while due := [event for event in self.events() if event[0] * self.tick <= end]:
            tick, _, what, whom = min(due, key=lambda event: event[:2])
            now = max(now, tick * self.tick)
            what(whom, now)

    def on_delay_over(self, job, now):
        self.ready_or_delayed(job, 0, now)

    def on_time_running_out(self, job, now):
        client = job.client
        if not job.in_safety_margin:
            job.in_safety_margin, job.order = True, self.next_order()
            if client.waiting:
                client.waiting = 0
                client.answers.append(("deadline soon",))
            return
        job.timeouts += 1
        self.drop(job)
        self.ready_or_delayed(job, 0, now)

    def on_timeout(self, client, now):
        client.waiting = 0
        client.answers.append(("timed out",))

    def on_unpause(self, tube, now):
        del self.paused[tube]
        self.match(now)
