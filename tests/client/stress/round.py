"""A round: a server, a worker, tasks of a few kinds, and what fails meanwhile. A seed determines all but the pace.

In a third of the rounds, only tasks fail. In the others, connections are cut or silent, the server is killed, with or
without -b, and the worker is killed, or replaced as in a rolling deploy.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from beanstalk_client import Client, ConnectionLostError, NotFoundError
from consuming import restartable
from working import WorkerProcess

from harness.relays import Relay
from harness.servers import ROOT, imported
from harness.waiting import eventually
from tests.client.stress.judge import Job, history, look, problems_of
from tests.client.stress.program import KINDS, lines, make, write

PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.client.stress.program import make, write

write("processes", "begins")
tasks = make(os.environ["QUEUE"])
"""

JOBS = 30
PUT_WITHIN = 5.0
"""Seconds from the first job to the last."""

ENDED_WITHIN = 180.0
"""Seconds until all jobs have ended after the last was put."""

ENDLESS = 40
"""Runs of one job after which it is taken to run for ever."""

GRACE = 2.0
STOPPED_WITHIN = GRACE + 5.0
IDLE_SECONDS = 3.0
MAX_IDLE_LOAD = 0.02
"""CPU seconds of an idle worker in a second."""

FAILURES = ("cut", "silence", "kill_server", "stop_server", "kill_worker", "deploy")


class Round:
    """See `run`.

    Attributes:
        problems: in words, each with the history of its job.
        loads: seconds of CPU time of the idle worker in a second.
        stops: seconds from SIGTERM to the end of each worker.
        restarts: of the server.
        losses: moments at which connections were lost.
    """

    def __init__(self, seed, place, kinds=None, *, is_calm=None):
        chance = random.Random(seed)
        self.place = place
        drawn_calm = chance.random() < 1 / 3
        self.is_calm = drawn_calm if is_calm is None else is_calm
        self.is_durable = chance.random() < 0.5
        self.processes = chance.choice([1, 2])
        running = [name for name, kind in KINDS.items() if not kind.hangs]
        hanging = [name for name, kind in KINDS.items() if kind.hangs]
        drawn = [*chance.sample(running, 6), "rest", "work", *chance.sample(hanging, 2)]
        given = kinds or drawn
        self.kinds = [name for name in given if not KINDS[name].hangs]
        self.hanging = [name for name in given if KINDS[name].hangs]
        self.options = ["--processes", str(self.processes), "--at-once", str(chance.choice([2, 5, 10]))]
        self.options += ["--threads", str(chance.choice([1, 2, 5])), "--grace", str(GRACE), "--log-format", "json"]
        self.chance = chance
        self.problems = []
        self.reports = Counter()  # by the id of the job
        self.loads = []
        self.stops = []
        self.restarts = 0
        self.losses = []
        self.events = 0
        self.jobs = []
        self.count = 0
        self.logs = []
        self.worker = None
        place.mkdir(parents=True, exist_ok=True)
        os.environ["STRESS"] = str(place)

    def __str__(self):
        kept = "with" if self.is_durable else "without"
        calm = ", calm" if self.is_calm else ""
        return f"server {kept} -b{calm}; worker {' '.join(self.options)}; {', '.join(self.kinds + self.hanging)}"

    def shocks(self):
        """How many times something failed that may cost any job a run."""
        crashes = len(lines("processes")) - self.processes
        return crashes + self.events + sum(KINDS[kind].crashes for kind in self.kinds)

    # The worker

    def start_worker(self):
        place = self.place / f"worker-{len(self.logs)}"
        place.mkdir()
        self.worker = WorkerProcess(self.relay, place, *self.options, program=PROGRAM)
        self.logs.append(self.worker)
        return self.worker

    def watch_worker(self):
        """Start another worker if it has ended, which only one that consists of a single process may do."""
        status = self.worker.process.poll()
        if status is None:
            return
        if self.processes > 1 or not any(KINDS[kind].crashes for kind in self.kinds):
            self.problems.append(f"the worker ended with {status}\n  {self.worker.log[-1500:]}")
        self.start_worker()

    def stop_worker(self, worker):
        """Stop a worker, and note how long it takes."""
        began = time.monotonic()
        worker.tell(signal.SIGTERM)
        try:
            status = worker.process.wait(STOPPED_WITHIN + 20)
        except subprocess.TimeoutExpired:
            worker.kill()
            status = "by SIGKILL"
        took = time.monotonic() - began
        self.stops.append(took)
        if took > STOPPED_WITHIN or status == "by SIGKILL":
            self.problems.append(f"the worker took {took:.1f} s to stop, and ended {status}\n  {worker.log[-1500:]}")

    def measure_idle(self):
        """The CPU time of the worker's processes while it has nothing to do."""
        pids = [self.worker.process.pid, *(int(line.split()[2]) for line in lines("processes"))]
        before = sum(map(cpu_seconds, set(pids)))
        time.sleep(IDLE_SECONDS)
        load = (sum(map(cpu_seconds, set(pids))) - before) / IDLE_SECONDS
        self.loads.append(load)
        if load > MAX_IDLE_LOAD:
            self.problems.append(f"the idle worker uses {load:.3f} s of CPU time in a second")

    # Jobs

    def put(self, kind):
        job = Job(kind, self.count, time.monotonic())
        self.count += 1
        self.jobs.append(job)
        write(job.name, "is put")
        with contextlib.suppress(ConnectionLostError):
            job.job_id = self.tasks.get(kind).put(job.name)
        write(job.name, "is job", job.job_id)

    def fail(self):
        """Let something fail."""
        what = self.chance.choice(FAILURES)
        self.events += 1
        self.losses.append(time.monotonic())
        write("failures", what)
        getattr(self, what)()
        self.losses.append(time.monotonic())

    def cut(self):
        self.relay.cut()
        time.sleep(self.chance.choice([0.0, 0.5]))
        self.relay.mend()

    def silence(self):
        self.relay.silence()
        time.sleep(self.chance.uniform(0.5, 3))
        self.relay.mend()

    def kill_server(self):
        self.restart(self.server.kill)

    def stop_server(self):
        self.restart(self.server.process.stop)

    def restart(self, end):
        end()
        lost = [] if self.is_durable else [job for job in self.jobs if not job.is_lost]
        for job in lost:
            job.is_lost = True
        self.server.start()
        self.restarts += 1
        for job in lost:
            if not job.has_ended:
                self.put(job.kind)

    def kill_worker(self):
        self.worker.kill()
        self.start_worker()

    def deploy(self):
        former = self.worker
        self.start_worker().wait_for("worker-started", "it has started")
        self.stop_worker(former)

    def is_quiet(self):
        self.watch_worker()
        if any(sum(" began" in line for line in lines(job.name)) > ENDLESS for job in self.jobs):
            raise AssertionError("a job runs for ever")
        try:
            found = self.client.stats_tube("stress")
        except (NotFoundError, ConnectionLostError):
            return all(job.is_lost for job in self.jobs)
        if any(found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed")):
            return False
        states = look(self.client, self.jobs, self.reports)  # another worker reports that one was lost
        return all(self.reports[job_id] for job_id, state in states.items() if state == "buried")

    # The round

    def play(self):
        with contextlib.ExitStack() as stack:
            storage = self.place / "binlog" if self.is_durable else None
            if storage:
                storage.mkdir()
            self.server = stack.enter_context(restartable(imported(), storage))
            self.relay = Relay(self.server.address)
            stack.callback(self.relay.close)
            self.client = stack.enter_context(Client(self.server.address, encoding=None, reconnect_timeout=20))
            self.tasks = make(self.server.address)
            stack.callback(self.tasks.close)
            stack.callback(self.end_processes)
            self.start_worker().wait_for("worker-started", "it has started")
            self.load()
            if self.await_quiet():
                self.measure_idle()
                self.hang()

    def load(self):
        moments = sorted(self.chance.uniform(0, PUT_WITHIN) for _ in range(JOBS))
        failures = [] if self.is_calm else sorted(self.chance.uniform(0, PUT_WITHIN + 2) for _ in range(3))
        began = time.monotonic()
        while moments or failures:
            self.watch_worker()
            passed = time.monotonic() - began
            if moments and moments[0] <= passed:
                moments.pop(0)
                self.put(self.chance.choice(self.kinds))
            if failures and failures[0] <= passed:
                failures.pop(0)
                self.fail()
            time.sleep(0.01)

    def hangs(self):
        self.watch_worker()
        return any(" began" in line for job in self.jobs for line in lines(job.name))

    def hang(self):
        """Stop the worker while tasks hang; the next worker runs them again."""
        self.jobs, self.events = [], self.events + 1
        for kind in self.hanging:
            self.put(kind)
        eventually(self.hangs, "a task hangs")
        self.stop_worker(self.worker)
        (self.place / "over").touch()
        self.start_worker()
        self.await_quiet()

    def await_quiet(self):
        """Wait until all jobs have ended, and judge them; return whether they have."""
        try:
            eventually(self.is_quiet, "all jobs have ended", ENDED_WITHIN)
        except AssertionError as error:
            self.problems.append(str(error))
        self.judge()
        return not any("within" in one or "for ever" in one for one in self.problems[:1])

    def judge(self):
        states = look(self.client, self.jobs, self.reports)
        log = "".join(worker.log for worker in self.logs)
        for job in self.jobs:
            if found := [*problems_of(job, self, states.get(job.job_id, "done"), self.reports[job.job_id])]:
                self.problems.append("\n  ".join([f"{job.name}: {'; '.join(found)}", *history(job, log)]))

    def end_processes(self):
        for worker in self.logs:
            worker.close()
        for line in lines("processes"):
            pid = int(line.split()[2])
            with contextlib.suppress(OSError):
                if b"beanstalk_client.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def cpu_seconds(pid):
    """The CPU time of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(seed, place, kinds=None, *, is_calm=None):
    """Play a round; return it.

    Args:
        seed: determines the kinds of tasks, the options, and what fails.
        place: a directory for its files, which does not exist.
        kinds: of tasks, instead of those that the seed has drawn.
        is_calm: whether nothing but tasks fails, instead of what the seed says.
    """
    one = Round(seed, place, kinds, is_calm=is_calm)
    try:
        one.play()
    except AssertionError as error:
        one.problems.append(f"given up: {error}")
    return one
