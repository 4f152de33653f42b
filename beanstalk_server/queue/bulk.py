"""Bulk operations: what is left to do of a kick, redrive, move, clear, cancel of a group, disconnect or change of
policies, and for whom.

A bulk operation is a timer that is always overdue, so that `Broker.advance` continues it one slice at a time, and other
commands are served between the slices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue import transitions
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.costs import CLEAR_COST, KICK_COST, LOOK_SHIFT, MOVE_COST, REVIEW_COST
from beanstalk_server.queue.groups import END_CANCELLED, Group
from beanstalk_server.queue.job import BURIED, DELAYED, DISCONNECTED, READY, RESERVED, DeadLetter, Job
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.outcome import FAILED, NOT_FOUND, Outcome
from beanstalk_server.queue.recording import end_expiry, record_leave, record_stay, review_expiry
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import OVERDUE, Timer

COLLECT_SLICE: Final = 4096
"""The most jobs of a disconnected client that are collected at a time, in a fifth of a millisecond."""


class BulkOperation(Timer):
    """What is left of one operation."""

    def __init__(self) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        """Do as much as the budget allows; return whether all is done. If not, it is in the wheel, or suspended."""
        return True

    def complete(self) -> None:
        """Note that all is done."""

    def fail(self, queue: QueueState) -> None:
        """Note that a step has failed."""

    def go_on(self, queue: QueueState, now: int, budget: int) -> None:
        """Do the next step."""
        try:
            is_done = self.step(queue, max(budget, 1), now)
        except Exception:
            self.fail(queue)
            raise
        if is_done:
            self.complete()


class BulkCommand(BulkOperation):
    """An operation whose client waits for the number of jobs that it concerned."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.count = 0

    def answer(self) -> None:
        """Tell the client how many jobs there were."""
        self.client.on_counted(self.count)

    def must_wait(self, queue: QueueState, budget: int, admission: int = ALL) -> bool:
        """Whether the rest is left to another slice, or to a time when the journal admits this."""
        if admission != NONE and (queue.admits == NONE or (admission == ALL and queue.admits != ALL)):
            (queue.suspended if admission == ALL else queue.suspended_deletions).append(self)
            return True
        if budget <= queue.cost:
            queue.wheel.set(self, OVERDUE)
            return True
        return False

    def complete(self) -> None:
        self.client.busy = False
        if not self.client.leaving:
            self.answer()

    def fail(self, queue: QueueState) -> None:
        self.client.busy = False
        self.client.on_outcome(FAILED)


class BulkCount(BulkCommand):
    """An operation on the first jobs of one tube in one state.

    Args:
        state: READY, DELAYED or BURIED.
        bound: the most jobs.
        price: the cost of each.
    """

    def __init__(self, client: Client, tube: Tube, state: int, bound: int, price: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.state = state
        # Not more than there are now: those that come meanwhile may stay, or it would never end.
        self.remaining = min(bound, tube.count_of(state))
        self.price = price

    def do(self, queue: QueueState, job: Job, now: int) -> None:
        """Do with one job what is to be done."""

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        budget += queue.cost
        while self.remaining:
            job = queue.first_of(self.tube, self.state)
            if job is None:
                return True
            if self.must_wait(queue, budget):
                return False
            queue.cost += self.price
            self.remaining -= 1
            self.count += 1
            self.do(queue, job, now)
        return True


class BulkKick(BulkCount):
    """A kick of one tube: of its buried jobs or, if it has none, of its delayed jobs."""

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        if tube.buried_count:
            super().__init__(client, tube, BURIED, bound, 1)
        else:
            super().__init__(client, tube, DELAYED, bound, KICK_COST)

    def do(self, queue: QueueState, job: Job, now: int) -> None:
        transitions.kick_one(queue, job, now)


class BulkRedrive(BulkCommand):
    """A redrive of the dead letters of one tube."""

    def __init__(self, client: Client, tube: Tube, bound: int) -> None:
        super().__init__(client)
        self.tube = tube
        self.remaining = bound
        # Not more than there are now: one that fails again meanwhile is not redriven twice, and one that is reserved,
        # and goes to the end, is not looked at again.
        self.visits = tube.letter_count

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        tube = self.tube
        budget += queue.cost
        while self.remaining and self.visits and tube.letters is not None:
            if self.must_wait(queue, budget):
                return False
            self.visits -= 1
            queue.cost += 1
            letter = tube.letters.after
            assert isinstance(letter, DeadLetter)
            job = letter.job
            terms = job.own_terms()
            if job.state == RESERVED or tube.is_cleared(job) or not self.client.may_administer(terms.origin):
                letter.unlink()
                tube.letters.append(letter)
                continue
            queue.cost += MOVE_COST
            self.remaining -= 1
            self.count += 1
            queue.counters.redriven += 1
            tube.counters.redriven += 1
            transitions.leave(queue, job)
            transitions.move_letter(queue, job, terms, terms.origin, "", now)
        return True


class BulkMove(BulkCount):
    """A move of the jobs of one tube that are in one state."""

    def __init__(self, client: Client, tube: Tube, state: int, target: str, bound: int) -> None:
        super().__init__(client, tube, state, bound, 1 + MOVE_COST)
        self.target = target  # the name of the other tube, which may come and go meanwhile

    def do(self, queue: QueueState, job: Job, now: int) -> None:
        transitions.move_one(queue, job, self.target, now)


class BulkClear(BulkOperation):
    """A clear of one tube: jobs that have left their queues, and cannot be found by id or key any more, and keys that
    are not held any more."""

    def __init__(self, client: Client, tube: Tube, timed: list[Job]) -> None:
        super().__init__()
        self.client = client
        self.tube = tube
        self.count = tube.ready.count() + len(tube.delayed.jobs) + len(timed) + tube.buried_count
        self.ready = tube.ready
        self.delayed = tube.delayed.jobs
        self.timed = timed
        self.buried = Ring()
        self.buried.take_all_of(tube.buried)
        self.held = tube.held
        self.owes_answer = False  # the client still waits for the count

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        while budget > 0:
            if queue.admits == NONE and len(queue.groups.by_id):  # what becomes of members is recorded
                queue.suspended_deletions.append(self)
                return False
            budget -= CLEAR_COST
            ready = self.ready.pop_any()
            if ready is not None:
                job = ready
                end_expiry(queue, job)
            elif self.delayed:
                job = self.delayed.pop()
                if job.is_linked():  # unless it has come due since
                    queue.wheel.remove(job)
            elif self.timed:
                job = self.timed.pop()
            elif not self.buried.is_empty():
                link = self.buried.after
                assert isinstance(link, Job)
                job = link
                job.unlink()
            elif self.held:
                held = self.held.pop()
                if held.is_linked():  # unless its time has come since
                    queue.wheel.remove(held)
                transitions.free_key(queue, held)
                if queue.records:
                    queue.journal.forget(held)
                continue
            else:
                self.buried.dissolve()
                self.tube.clearing -= 1
                return True
            group = job.group()
            if group is not None:
                group.count(END_CANCELLED)
                record_leave(queue, group, END_CANCELLED, job)
            transitions.forget(queue, job)
            if queue.records:
                queue.journal.forget(job)
        queue.wheel.set(self, OVERDUE)
        return False

    def complete(self) -> None:
        if self.owes_answer:
            self.owes_answer = self.client.busy = False
            self.client.on_counted(self.count)

    def fail(self, queue: QueueState) -> None:
        queue.wheel.set(self, OVERDUE)  # its jobs have left their queues, and would stay in memory
        if self.owes_answer:
            self.owes_answer = self.client.busy = False
            self.client.on_outcome(FAILED)


class BulkCancel(BulkCommand):
    """A cancel of the members of one group, from the last to the first: the last takes the place of one that goes."""

    def __init__(self, client: Client, group: Group) -> None:
        super().__init__(client)
        self.group = group
        self.position = len(group.members)  # after the one that is looked at next

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        budget += queue.cost
        members = self.group.members
        while self.position:
            if self.must_wait(queue, budget, DELETIONS):
                return False
            queue.cost += 1
            self.position = min(self.position, len(members)) - 1
            if self.position < 0:
                return True
            job = members[self.position]
            if job.state != RESERVED and not job.tube.is_cleared(job):
                self.count += 1
                transitions.end_job(queue, job)
        return True


class BulkBatch(BulkCommand):
    """One command for each of several jobs, by their ids: those that it does not find are counted, too.

    Args:
        act: does the command with a job of the client at a moment.
        admission: what the journal must admit: ALL, DELETIONS or NONE.
    """

    def __init__(
        self, client: Client, job_ids: list[int], act: Callable[[Client, int, int], Outcome], admission: int
    ) -> None:
        super().__init__(client)
        self.job_ids = job_ids
        self.act = act
        self.admission = admission
        self.position = 0

    def answer(self) -> None:
        self.client.on_counted(self.count, len(self.job_ids) - self.count)

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        budget += queue.cost
        client = self.client
        while self.position < len(self.job_ids):
            if client.leaving:
                return True
            if self.must_wait(queue, budget, self.admission):
                return False
            queue.cost += 1
            self.position += 1
            job = queue.jobs.get(self.job_ids[self.position - 1])
            if job is not None and client.may_consume(job.tube.name):
                self.count += self.act(client, job.id, now) != NOT_FOUND
        return True


class BulkTouchAll(BulkBatch):
    """A touch of all jobs that a client has reserved, page by page: from the last one, as the pages before it may be
    empty and removed meanwhile."""

    def __init__(self, client: Client, touch: Callable[[Client, int, int], Outcome]) -> None:
        self._page = self._last = client.reserved.last_page()
        super().__init__(client, client.reserved.ids(self._page), touch, NONE)

    def answer(self) -> None:
        self.client.on_counted(self.count)

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        budget += queue.cost
        while super().step(queue, budget - queue.cost, now):
            self._page -= 1
            # Has the last page, which has been done, become the first, as those before it are empty?
            is_over = self._page < 0 or self.client.reserved.last_page() != self._last
            if is_over or self.client.leaving:
                return True
            self.job_ids = self.client.reserved.ids(self._page)
            self.position = 0
        return False


class BulkReview(BulkOperation):
    """A review of all tubes after a change of policies, and then of their jobs, if any could live longer or shorter.

    The tubes are reviewed from the last to the first: the last one takes the place of a tube that goes, and new ones
    come at the end, so that none is passed over. The jobs are reviewed by the pages of their table: a heap would change
    its order meanwhile. No client waits for any of this.
    """

    def __init__(self, tubes: int) -> None:
        super().__init__()
        self.position = tubes  # after the tube that is reviewed next
        self.is_complete = False
        self.concerns_jobs = False  # a tube has another time to live
        # the indexes of those that are still to come; None until all tubes have been reviewed
        self.pages: list[int] | None = None
        self.jobs: list[Job] = []  # those left of the present page; some may be gone since

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        try:
            self.is_complete = self._review(queue, budget, now)
        finally:
            if not self.is_complete:
                queue.wheel.set(self, OVERDUE)
        return self.is_complete

    def _review(self, queue: QueueState, budget: int, now: int) -> bool:
        while budget > 0:
            self.position = min(self.position, len(queue.tubes)) - 1
            if self.position < 0:
                return not self.concerns_jobs or self._review_jobs(queue, budget, now)
            budget -= REVIEW_COST
            tube = queue.tubes.at(self.position)
            policy = queue.policy_of(tube.name)
            if policy.ttl != tube.policy.ttl:
                self.concerns_jobs = True
            queue.set_policy(tube, policy, now)
            budget = transitions.serve_waiting(queue, tube, budget, now)
            queue.drop_unneeded(tube)
        return False

    def _review_jobs(self, queue: QueueState, budget: int, now: int) -> bool:
        if self.pages is None:
            self.pages = queue.jobs.page_indexes()
        unrecorded: list[Job] = []  # their time to live begins
        while budget > 0 and (self.jobs or self.pages):
            if not self.jobs:
                self.jobs = queue.jobs.page_jobs(self.pages.pop())
                budget -= 1 + (len(self.jobs) >> LOOK_SHIFT)
                continue
            job = self.jobs.pop()
            if job.state in (READY, RESERVED) and not job.tube.is_cleared(job):
                terms = job.terms()
                if (terms is None or terms.expiry is None) and job.ttl():
                    unrecorded.append(job)
                if job.state == READY:
                    review_expiry(queue, job, now)
                elif job.ttl():
                    queue.memory.give_terms(job)  # or its reservation would not be recorded
                budget -= 1
        if unrecorded:
            queue.wheel.set(BulkRecord(unrecorded), OVERDUE)
        return not self.jobs and not self.pages


class BulkRecord(BulkOperation):
    """Records since when jobs are ready that can expire, or that they are reserved: their records do not say so.

    Args:
        jobs: some may be gone since, and then their records with them.
    """

    def __init__(self, jobs: list[Job]) -> None:
        super().__init__()
        self.jobs = jobs

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        jobs = self.jobs
        while jobs:
            if queue.admits != ALL:
                queue.suspended.append(self)
                return False
            if not budget:
                queue.wheel.set(self, OVERDUE)
                return False
            budget -= 1
            job = jobs.pop()
            if job.state in (READY, RESERVED) and not job.tube.is_cleared(job):
                record_stay(queue, job)
        return True


class BulkDisconnect(BulkOperation):
    """The disconnect of one client: its jobs, and the tubes that it watched and waited in."""

    def __init__(self, client: Client, has_left: bool) -> None:
        super().__init__()
        self.client = client
        self.has_left = has_left  # by itself, and so its jobs have failed
        self.jobs: list[Job] = []  # the last is the one that it reserved first
        self.waited = client.waiting

    def step(self, queue: QueueState, budget: int, now: int) -> bool:
        client = self.client
        client.reserved.move_last(self.jobs, COLLECT_SLICE)
        if len(client.reserved):
            queue.wheel.set(self, OVERDUE)
            return False
        jobs = self.jobs
        while jobs and budget > queue.cost:
            job = jobs[-1]
            if job.client is client:  # unless its time to run has ended since
                is_counted = self.has_left and job.tube.policy.count_disconnects and job.counts_failures()
                is_counted = is_counted and not queue.halted
                is_again = job.runs_again() and not queue.halted
                if (is_counted or is_again) and queue.admits != ALL:
                    queue.suspended.append(self)
                    return False
                transitions.leave_reserved(queue, job)
                if is_again:
                    transitions.run_again(queue, job, now)
                elif is_counted:
                    transitions.fail(queue, job, DISCONNECTED, 0, now)
                else:
                    transitions.enter_ready(queue, job, now)
                    record_stay(queue, job)
            jobs.pop()
            budget -= 1
        watched = client.watched
        waits = client.waits
        while watched and not jobs and budget > queue.cost:
            tube = watched[0]
            if self.waited:
                wait = waits[0]
                waits[0] = waits[len(watched) - 1]
                waits.pop()
                if wait.is_linked():  # unless its turn has come since: then `serve_waiting` has skipped it
                    wait.unlink()
                    tube.waiting_count -= 1
            transitions.leave_tube(queue, client, tube, 0)
            budget -= 1
        if jobs or watched:
            queue.wheel.set(self, OVERDUE)
            return False
        waits.clear()  # each refers to the client, and would keep it in memory
        transitions.unuse(queue, client)
        return True
