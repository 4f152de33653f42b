"""Finds the jobs of a page of list-jobs: those of one tube in one state that follow a position, in their order.

    state     order                     position: what has been listed
    --------  ------------------------  ----------------------------------------------------------------------------
    ready     (priority, id)            priority, id
    delayed   (when it is due, id)      deadline, id; and moment, id for those that are due by the wall clock
    reserved  id                        id
    buried    (bury sequence, id)       bury sequence, id

A position is a place in an order that jobs do not share and that does not change while they stay where they are. So a
job that stays is listed once, however others come and go, and whether the job that the page before has ended with is
still there or not. Delayed jobs are in two orders, which are merged by when they are due; there is a position in each,
because the one moves against the other when the wall clock is set.

What is first costs k log k for k jobs, however many there are: the jobs of a heap that follow a position, and whose
parents do not, are the roots of heaps. To find these, all that is before the position is gone over: at once, while it
is little. Otherwise the search goes through the table of all jobs, page by page, each slice one page, because a heap
changes its order between two slices. No page is looked at twice and a job never changes its page, so a job that stays
is looked at once. What comes long after the page is passed over: a sample of the heap tells where that begins. If the
sample has told wrong, the page is shorter. What is found is looked at again when the page is written: a job that has
left its place meanwhile is left out.

A search through the table finds some pages more than one. Those are at hand for the client's next search, if it goes on
where this one has ended: what has come since is not among them, and need not be, because it was not there when the
pages that follow from each other began. So of four deep pages, one costs a search.

    a page of a tube with a million jobs                      costs, compiled
    --------------------------------------------------------  -------------------------------------------------
    the first ones, in any state                              1 to 2 ms
    ready, further on: many jobs have the same priority       1 to 3 ms: those follow each other in the table
    ready, each with its own priority; delayed, further on    25 to 35 ns for each job of the server, a page at a time;
                                                              the next two or three pages 1 ms
    buried, further on                                        1 ms; if the last job has gone, as above
    reserved                                                  1 ms
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from beanstalk_server.queue.costs import LOOK_SHIFT
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import BURIED, DELAYED, READY, RESERVED, Job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube

AT_ONCE: Final = 4096
"""The most jobs that are gone over at once, in a fifth of a millisecond."""

SAMPLE: Final = 2048
"""How many jobs of a heap are looked at to guess where a page ends."""

SPREAD: Final = 4
"""The guess is this many pages: half of it is still enough, nearly always."""

SPARE_ENTRIES: Final = 1024
"""How many more than twice as many as guessed are kept before the last of them are dropped."""

LAST_ID: Final = 2**64 - 1
"""No id is greater."""

POSITIONS: Final = {READY: 2, DELAYED: 4, RESERVED: 1, BURIED: 2}
"""How many numbers a position has, by state."""

Entry = tuple[int, int, Job]
"""A job behind what it is ordered by: a sort key, and its id."""


class JobSearch:
    """A search that is under way.

    Args:
        table: all jobs.
        tube, state: which of them.
        position: that at the end of the page before; [] for the beginning.
        count: the most jobs.
        wall_offset: the wall clock minus the server's clock, in nanoseconds.
        before: the search before, which is complete, if its client goes on with this one.
    """

    def __init__(
        self,
        table: IdTable[Job],
        tube: Tube,
        state: int,
        position: list[int],
        count: int,
        wall_offset: int,
        before: JobSearch | None = None,
    ) -> None:
        self._table = table
        self._tube = tube
        self._state = state
        # one job more than the page takes: whether there is one decides whether there is a next page
        self._limit = count + 1
        self._wall_offset = wall_offset
        # _moment_id: with `_moment`: the position of the jobs that are due by the wall clock
        # _key: with `_id`: the position; of the jobs that are delayed by the server's clock, where there are two
        self._key = self._id = self._moment = self._moment_id = 0
        if state == RESERVED:
            self._id = position[0] if position else 0
        elif position:
            self._key, self._id = position[0], position[1]
            if state == DELAYED:
                self._moment, self._moment_id = position[2], position[3]
        # of the table, those left, the next one last; None until the table is gone through
        self._pages: list[int] | None = None
        self._start = 0  # the page of the table that has the position's id
        self._same = 0  # how many have been found with the position's own sort key
        self._best: list[Entry] = []  # what has been found in the table, the first of it at least
        self._has_bound = False
        # _bound: with `_bound_id`: what comes after this is of no use
        self._bound = self._bound_id = 0
        self._kept = self._limit  # how many of what is found are kept
        self.found: list[Entry] = []  # the jobs of the page in their order, when it is complete
        self.next_position: list[int] = []  # that at the end of the page, when it is complete; [] if no job follows
        self.is_complete = False
        # when it is complete, what it has found beyond the page: sort keys and ids
        self._rest: list[tuple[int, int]] = []
        self._rest_position: list[int] = []  # that behind it; [] if no job follows
        self._is_at_hand = False  # the search before has found the page
        if before is not None and before._is_followed_by(tube, state, position):
            self._is_at_hand = True
            self._rest = before._rest
            self._rest_position = before._rest_position
            self._wall_offset = before._wall_offset  # by which these have their sort keys

    def go_on(self) -> int:
        """Do the next slice; return what it has cost."""
        if self._pages is not None:
            return self._look_through_page(self._pages)
        if self._is_at_hand:
            return self._take_rest()
        if self._state == READY:
            ready = self._tube.ready
            is_whole = ready.count() == len(ready.jobs)  # else those of lanes are only in the table
            found = _following(ready, self._key, self._id, self._limit) if is_whole else None
        elif self._state == DELAYED:
            found = self._delayed()
        elif self._state == BURIED:
            found = self._buried()
        else:
            found = self._reserved()
        if found is None:
            # From the page of the position on, and then those before it.
            self._start = start = self._table.index_of(self._id)
            pages = sorted(self._table.page_indexes())
            self._pages = [index for index in pages if index < start][::-1]
            self._pages += [index for index in pages if index >= start][::-1]
            self._guess_bound()
            return AT_ONCE >> LOOK_SHIFT
        self._end(found)
        return (AT_ONCE >> LOOK_SHIFT) + (len(found) >> 1)

    def is_here(self, entry: Entry) -> bool:
        """Whether a job that has been found is still where it was."""
        key, _, job = entry
        return job.state == self._state and job.tube is self._tube and self._sort_key(job) == key and self._has(job)

    def forget_found(self) -> None:
        """Refer to no job any more: the page has been written."""
        self.found = []

    def _is_followed_by(self, tube: Tube, state: int, position: list[int]) -> bool:
        """Whether what it has found beyond its page is the beginning of what follows this position."""
        return bool(self._rest) and tube is self._tube and state == self._state and position == self.next_position

    def _take_rest(self) -> int:
        count = self._limit - 1
        taken = self._rest[:count]
        self._rest = self._rest[count:]
        for key, job_id in taken:
            job = self._table.get(job_id)
            if job is not None:
                self.found.append((key, job_id, job))
        key, job_id = taken[-1]
        self.next_position = self._position_at(key, job_id) if self._rest else self._rest_position
        self.is_complete = True
        return len(taken) >> 2

    # What is found at once, in order; None if that would take too long.

    def _delayed(self) -> list[Entry] | None:
        tube = self._tube
        found = _following(tube.delayed, self._key, self._id, self._limit)
        if tube.timed is None or found is None:
            return found
        timed = _following(tube.timed, self._moment, self._moment_id, self._limit)
        if timed is None:
            return None
        offset = self._wall_offset
        found += [(moment - offset, job_id, job) for moment, job_id, job in timed]
        found.sort()
        return found[: self._limit]

    def _buried(self) -> list[Entry] | None:
        ring = self._tube.buried
        link = ring.after
        last = self._table.get(self._id)
        if last is not None and self.is_here((self._key, self._id, last)):
            link = last.after
        else:
            patience = AT_ONCE
            while isinstance(link, Job) and not self._follows(link, link.extras.bury_sequence):
                link = link.after
                patience -= 1
                if not patience:
                    return None
        found: list[Entry] = []
        while len(found) < self._limit and isinstance(link, Job):
            found.append((link.extras.bury_sequence, link.id, link))
            link = link.after
        return found

    def _reserved(self) -> list[Entry] | None:
        jobs = self._tube.reserved
        if len(jobs) > AT_ONCE:
            return None
        found: list[Entry] = [(0, job.id, job) for job in jobs if job.id > self._id]
        found.sort()
        return found[: self._limit]

    # What is found in the table

    def _guess_bound(self) -> None:
        """Guess what comes after the page, from a sample."""
        if self._state == READY:
            keys, size = self._sampled(self._tube.ready)
        elif self._state == DELAYED:
            keys, size = self._sampled(self._tube.delayed)
            if self._tube.timed is not None:
                more, timed = self._sampled(self._tube.timed)
                keys += more
                size += timed
        else:
            return
        keys.sort()
        rank = SPREAD * self._limit * min(size, SAMPLE) // max(size, 1)
        if rank < len(keys):
            self._has_bound = True
            self._bound = keys[rank]
            self._bound_id = LAST_ID
            self._kept = SPREAD * self._limit

    def _sampled(self, heap: JobHeap) -> tuple[list[int], int]:
        """The sort keys of some jobs of a heap that follow the position, and how many jobs it has."""
        jobs = heap.jobs
        size = len(jobs)
        keys: list[int] = []
        for index in range(0, size, max(size // SAMPLE, 1)):
            job = jobs[index]
            key = self._sort_key(job)
            if self._follows(job, key):
                keys.append(key)
        return keys, size

    def _look_through_page(self, pages: list[int]) -> int:
        best = self._best
        if not pages:
            best.sort()
            self._keep_rest(best)
            self._end(best[: self._limit])
            return len(best) >> LOOK_SHIFT
        index = pages.pop()
        jobs = self._table.page_jobs(index)
        state = self._state
        tube = self._tube
        has_bound = self._has_bound
        bound = self._bound
        bound_id = self._bound_id
        has_own_keys = state == DELAYED and tube.timed is not None
        by_deadline = state == DELAYED and not has_own_keys
        is_ready = state == READY
        for job in jobs:
            if job.state != state or job.tube is not tube:
                continue
            key = job.priority if is_ready else job.deadline if by_deadline else self._sort_key(job)
            if has_bound and (key > bound or (key == bound and job.id > bound_id)):
                continue
            if self._follows(job, key) and self._has(job):
                best.append((key, job.id, job))
                if key == self._key:
                    self._same += 1
        if state != DELAYED and self._same >= self._limit and index >= self._start:
            # They follow each other by their ids, as the pages do: no page that is left has one of the first.
            pages.clear()
            self._best = [entry for entry in best if entry[0] == self._key]
            self._has_bound = True
            self._bound = self._key
            self._bound_id = self._best[-1][1]
        elif len(best) > 2 * self._kept + SPARE_ENTRIES:
            best.sort()
            del best[self._kept :]
            self._has_bound = True
            self._bound, self._bound_id, _ = best[-1]
        return 1 + (len(jobs) >> LOOK_SHIFT)

    def _sort_key(self, job: Job) -> int:
        state = self._state
        if state == RESERVED:
            return 0
        if state == BURIED:
            return job.extras.bury_sequence
        if state == READY:
            return job.priority  # not its deadline, which orders it in its heap
        return job.deadline - self._wall_offset if state == DELAYED and job.is_timed() else job.deadline

    def _follows(self, job: Job, key: int) -> bool:
        """Whether a job follows the position."""
        if self._state == DELAYED and job.is_timed():
            return job.deadline > self._moment or (job.deadline == self._moment and job.id > self._moment_id)
        return key > self._key or (key == self._key and job.id > self._id)

    def _has(self, job: Job) -> bool:
        """Whether a job of the tube is there, and not about to be forgotten."""
        tube = self._tube
        return not tube.clearing or not tube.is_cleared(job)

    def _keep_rest(self, best: list[Entry]) -> None:
        """Keep what has been found beyond the page."""
        rest = best[self._limit - 1 : self._kept]
        if len(rest) < 2:
            return
        self._rest = [(key, job_id) for key, job_id, _ in rest]
        if len(best) > self._kept:
            key, job_id = self._rest[-1]
            self._rest_position = self._position_at(key, job_id)
        elif self._has_bound:
            self._rest_position = self._position_at(self._bound, self._bound_id)

    def _end(self, found: list[Entry]) -> None:
        """The search is over: these are the first that follow, in their order, and no more than the limit."""
        self._best = []
        self.is_complete = True
        count = self._limit - 1
        self.found = found[:count]
        if len(found) > count:
            key, job_id, _ = self.found[-1]
            self.next_position = self._position_at(key, job_id)
        elif self._has_bound:
            self.next_position = self._position_at(self._bound, self._bound_id)

    def _position_at(self, key: int, job_id: int) -> list[int]:
        if self._state == RESERVED:
            return [job_id]
        if self._state != DELAYED:
            return [key, job_id]
        moment, moment_id = key + self._wall_offset, job_id
        if (key, job_id) < (self._key, self._id):  # the wall clock has been set, and so the one order has moved
            key, job_id = self._key, self._id
        if (moment, moment_id) < (self._moment, self._moment_id):
            moment, moment_id = self._moment, self._moment_id
        return [key, job_id, moment, moment_id]


def _following(heap: JobHeap, key: int, job_id: int, limit: int) -> list[Entry] | None:
    """The first jobs of a heap that follow (key, id), in order; None if there are many before."""
    jobs = heap.jobs
    size = len(jobs)
    roots: list[tuple[int, int, int]] = []
    before = [0] if size else []
    patience = AT_ONCE
    while before:
        index = before.pop()
        job = jobs[index]
        if job.deadline > key or (job.deadline == key and job.id > job_id):
            roots.append((job.deadline, job.id, index))
            continue
        patience -= 1
        if not patience:
            return None
        below = 2 * index + 1
        if below < size:
            before.append(below)
            if below + 1 < size:
                before.append(below + 1)
    heapify(roots)
    found: list[Entry] = []
    while roots and len(found) < limit:
        first, first_id, index = heappop(roots)
        found.append((first, first_id, jobs[index]))
        for below in (2 * index + 1, 2 * index + 2):
            if below < size:
                job = jobs[below]
                heappush(roots, (job.deadline, job.id, below))
    return found
