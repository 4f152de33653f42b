"""Verifies the invariants of a broker: its counts, its orders, its links, and the answers that it owes.

For tests, which call it after every step. It visits every job and tube, and changes nothing.
"""

from __future__ import annotations

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.groups import waits
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import (
    DELAYED,
    DELETED,
    NEW,
    NO_EXTRAS,
    READY,
    RESERVED,
    SINCE_UNKNOWN,
    STATES,
    URGENT,
    DeadLetter,
    HeldKey,
    Job,
)
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.memory import group_cost, held_cost, job_cost
from beanstalk_server.queue.policy import NO_POLICY, UNREAD
from beanstalk_server.queue.throttle import Throttle
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import OVERDUE, Timer


def check_broker(broker: Broker) -> None:
    """Verify every invariant, between two calls of the broker.

    Raises:
        AssertionError: an invariant does not hold.
    """
    broker.wheel.check()
    broker.jobs.check()
    broker.held.check()
    broker.tubes.check()
    _check_wall_clock(broker)
    _check_suspended(broker)
    _check_groups(broker)
    _check_jobs(broker)
    _check_tubes(broker)
    _check_labels(broker)
    _check_shared_extras()
    _check_counters(broker)


def _check_suspended(broker: Broker) -> None:
    count = broker.suspended.check()
    assert not count or broker.admits != ALL, "something is suspended although the journal admits everything"
    count = broker.suspended_deletions.check()
    assert not count or broker.admits == NONE, "a deletion is suspended although the journal admits it"


def _check_groups(broker: Broker) -> None:
    groups = broker.groups
    groups.check()
    assert not groups.is_due() or _is_overdue(groups), "nothing will let groups end"
    for job in broker.jobs.values():
        labels = job.labels()
        if labels is None:
            continue
        group = labels.joined
        assert group is None or (groups.get(labels.group) is group and group.members[labels.member] is job)
        is_member = labels.group != "" and not job.own_terms().origin
        assert group is None or is_member, f"job {job.id} is a member of a group, and may not be"
        awaited = labels.awaited
        assert awaited is None or (waits(job) and (awaited.group is None or groups.get(labels.after) is awaited.group))
    link = groups.released.after
    while isinstance(link, Job):
        assert waits(link), f"job {link.id} has been let go, and has not waited"
        link = link.after


def _check_jobs(broker: Broker) -> None:
    counts = [0] * (DELETED + 1)
    urgent = 0
    in_safety_margin: dict[Client, int] = {}
    sizes = dict.fromkeys(broker.tubes.values(), 0)
    for job in broker.jobs.values():
        assert job.id < broker.next_id, f"job {job.id} has an id that the broker has not given out"
        _check_letter(job)
        if job.tube.is_cleared(job):
            continue
        sizes[job.tube] += broker.body_size(job)
        _check_job(broker, job)
        counts[job.state] += 1
        urgent += job.state == READY and job.priority < URGENT
        if job.client is not None:
            in_safety_margin[job.client] = in_safety_margin.get(job.client, 0) + job.in_safety_margin
    assert counts[NEW] == counts[DELETED] == 0, "a new or deleted job can be found"
    assert [broker.ready, broker.reserved, broker.buried, broker.delayed] == counts[READY:DELETED]
    assert broker.urgent == urgent
    packed = [job for job in broker.jobs.values() if job.is_packed()]
    pages = broker.memory.pages
    pages.check()
    assert len({(id(job._body), job._slot()) for job in packed}) == len(packed) == pages.count(), "a slot is lost"
    used = sum(map(job_cost, broker.jobs.values())) + sum(map(held_cost, broker.held.values()))
    used += sum(group_cost(group.key) for group in broker.groups.values())
    assert broker.memory.used == used, "the account of memory is wrong"
    for tube, size in sizes.items():
        assert tube.bytes == size, f"the account of the bytes of tube {tube.name} is wrong"
    for client, count in in_safety_margin.items():
        if client.weights is not None:
            client.weights.check()
        assert client.jobs_in_safety_margin == count
        assert not (client.waiting and count), "a client waits although one of its jobs is in its safety margin"


def _check_letter(job: Job) -> None:
    terms = job.terms()
    if terms is not None:
        assert (terms.letter is not None) == (terms.origin != ""), f"job {job.id}: who has an origin is a dead letter"
        assert terms.letter is None or (terms.letter.job is job and terms.letter.is_linked())
        assert terms.origin != job.tube.name, f"job {job.id} has come from the tube that it is in"


def _check_job(broker: Broker, job: Job) -> None:
    tube = job.tube
    assert broker.tubes[tube.name] is tube, f"job {job.id} is in a tube that cannot be found"
    if job.key:
        assert tube.keys is not None and tube.keys.get(job.key) is job, f"job {job.id} cannot be found by its key"
    is_reserved = job.state == RESERVED
    assert (job.client is not None) == is_reserved, (
        f"job {job.id} is reserved without a client, or has a client and is not reserved"
    )
    client = job.client
    assert client is None or client.leaving or client.reserved.holds(job), (
        f"job {job.id} is not among its client's reserved jobs"
    )
    assert is_reserved or job.reserves or job.is_packed() or job.page in (0, SINCE_UNKNOWN), (
        f"job {job.id} has never been reserved, but has a page of reserved jobs"
    )
    assert is_reserved or not job.in_safety_margin, f"job {job.id} is in its safety margin, but not reserved"
    if broker.review is None or broker.review.is_complete:
        _check_expiry(job)
    is_linked = job.state != READY and not job.is_timed()
    assert job.is_linked() == is_linked, f"job {job.id} is {STATES[job.state]}: its link is wrong"
    assert not job.is_timed() or job.state == DELAYED, f"job {job.id} is {STATES[job.state]}, but waits for a moment"


def _check_expiry(job: Job) -> None:
    terms = job.terms()
    expiry = terms.expiry if terms is not None else None
    if expiry is None:
        assert job.state != READY or not job.ttl(), f"job {job.id} will never expire"
        return
    assert terms is not None and job.state == READY, f"job {job.id} is {STATES[job.state]}, and yet can expire"
    assert expiry.job is job and expiry.is_linked(), f"nothing will let job {job.id} expire"
    assert expiry.deadline == terms.ready_since + job.ttl(), f"job {job.id} expires at another moment"


def _check_tubes(broker: Broker) -> None:
    waiting: set[Client] = set()
    totals = [0, 0, 0, 0, 0]
    for tube in broker.tubes.values():
        _check_tube(broker, tube)
        for client in _waiting_in(tube):
            assert client.waiting is not client.leaving, "a tube lists a client that neither waits nor leaves"
            assert tube in client.watched, "a client waits in a tube that it does not watch"
            if client.waiting:
                waiting.add(client)
        found = (tube.ready.count(), tube.delayed_count(), tube.buried_count, len(tube.reserved), tube.urgent)
        totals = [total + part for total, part in zip(totals, found, strict=True)]
    assert totals == [broker.ready, broker.delayed, broker.buried, broker.reserved, broker.urgent]
    clearing = sum(held.tube.is_cleared(held) for held in broker.held.values())
    pauses = [held for held in broker.held.values() if not held.key]
    assert broker.pauses == len(pauses)
    for pause in pauses:
        assert pause.is_linked() or (pause.tube.pause_record is pause and pause.tube.pause), "no pause is left"
    assert len(broker.held) - clearing - len(pauses) == sum(len(tube.held) for tube in broker.tubes.values())
    # Those that watch no tube wait in none.
    assert broker.waiting >= len(waiting), "the statistics count too few waiting clients"
    for client in waiting:
        assert not client.busy, "a client waits although it is owed another answer"
        assert all(client in _waiting_in(tube) for tube in client.watched), "a client does not wait in all its tubes"


def _check_buried(tube: Tube) -> None:
    before = (-1, 0)
    link = tube.buried.after
    while isinstance(link, Job):
        place = (link.extras.bury_sequence, link.id)
        assert place > before, f"buried job {link.id} is not in the order of burials"
        before = place
        link = link.after


def _check_tube(broker: Broker, tube: Tube) -> None:
    stays = tube.throttle is not None and tube.throttle.is_linked() and tube.throttle.full_at
    assert tube is broker.tubes.default or tube.is_needed() or stays, f"tube {tube.name} exists, but nothing needs it"
    _check_heap(broker, tube.ready, READY, tube)
    _check_heap(broker, tube.delayed, DELAYED, tube)
    assert not any(job.is_timed() for job in tube.delayed.jobs), "a timed job is among the other delayed ones"
    if tube.timed is not None:
        _check_heap(broker, tube.timed, DELAYED, tube)
        assert broker.wall.heaps[tube.timed.index] is tube.timed, "the wall clock does not know a tube"
        for job in tube.timed.jobs:
            terms = job.terms()
            assert terms is not None and terms.at == job.deadline, f"job {job.id} is due at another moment"
    for index, held in enumerate(tube.held):
        assert held.tube is tube and held.heap_index == index and broker.held[held.id] is held
        assert held.id not in broker.jobs and held.id < broker.next_id
        assert held.is_linked(), f"nothing will free key {held.key}"
        assert held.key and tube.keys is not None and tube.keys.get(held.key) is held, f"key {held.key} is not held"
    for index, job in enumerate(tube.reserved):
        assert job.state == RESERVED and job.tube is tube and job.heap_index == index
    assert tube.buried.check() == tube.buried_count
    _check_buried(tube)
    assert tube.waiting.check() == tube.waiting_count
    _check_letters(broker, tube)
    assert not tube.pause or tube.is_linked(), f"nothing will end the pause of tube {tube.name}"
    assert tube.blocked == (tube.pause != 0 or tube.is_throttled()), f"tube {tube.name} does not know if it is blocked"
    throttle = tube.throttle
    if throttle is not None:
        _check_throttle(throttle, tube)
    is_served_later = _is_overdue(tube) or (throttle is not None and _is_overdue(throttle))
    is_served_later |= any(tube in limit.unserved for limit in broker.limits.values())
    assert tube.ready.first() is None or not tube.waiting_count or tube.blocked or is_served_later, (
        f"tube {tube.name} has ready jobs, and yet clients wait"
    )
    if tube.keys is not None:
        tube.keys.check()
        for holder in tube.keys.values():
            found = broker.held[holder.id] if isinstance(holder, HeldKey) else broker.jobs[holder.id]
            assert found is holder, f"key {holder.key} of tube {tube.name} outlives its job"


def _check_wall_clock(broker: Broker) -> None:
    wall = broker.wall
    wall.check()
    first = wall.first()
    assert wall.is_linked() == wall.check_timer.is_linked() == (first is not None), "the wall clock's timers are wrong"
    assert first is None or wall.deadline == first.deadline - wall.offset, "the wall clock waits for another job"
    assert sum(tube.timed is not None for tube in broker.tubes.values()) == len(wall.heaps)


def _check_letters(broker: Broker, tube: Tube) -> None:
    if tube.letters is None:
        assert not tube.letter_count
        return
    assert tube.letters.check() == tube.letter_count > 0
    letter = tube.letters.after
    while isinstance(letter, DeadLetter):
        job = letter.job
        assert broker.jobs[job.id] is job and job.tube is tube, f"a dead letter of tube {tube.name} is not in it"
        letter = letter.after


def _is_overdue(timer: Timer) -> bool:
    return timer.is_linked() and timer.deadline == OVERDUE


def _check_throttle(throttle: Throttle, tube: Tube) -> None:
    policy = tube.policy
    wanted = (policy.interval, (policy.burst - 1) * policy.interval, policy.max_reserved)
    assert (throttle.interval, throttle.credit, throttle.max_reserved) == wanted, "a throttle follows another policy"
    assert throttle.tube is tube and (throttle.interval or throttle.max_reserved)
    assert throttle.lacks_place == (0 < throttle.max_reserved <= len(tube.reserved)), "the places are counted wrongly"
    assert throttle.interval or not throttle.full_at, "there is a bucket without a rate"
    assert not throttle.lacks_token or throttle.is_linked(), f"tube {tube.name} waits for a token that nothing brings"
    assert not throttle.lacks_token or throttle.deadline == throttle.next_token()


def _check_heap(broker: Broker, heap: JobHeap, state: int, tube: Tube) -> None:
    heap.check()
    for job in heap.jobs:
        assert job.state == state and job.tube is tube and broker.jobs[job.id] is job
        assert state == DELAYED or job.deadline == job.priority


def _check_labels(broker: Broker) -> None:
    urgent = dict.fromkeys(broker.tubes.values(), 0)
    limits: dict[str, list[Job]] = {}
    for job in broker.jobs.values():
        labels = job.lane_labels()
        is_cleared = job.tube.is_cleared(job)
        if labels is not None:
            assert (labels.limiter is None) == (not labels.limit), f"job {job.id} does not know its limit"
            assert is_cleared or (labels.lane is not None) == (job.state == READY), f"job {job.id}: its lane is wrong"
            if labels.limit:
                name = labels.limit_in(job.tube.name)
                assert broker.limits[name] is labels.limiter
                limits.setdefault(name, []).append(job)
        if job.state == READY and not is_cleared:
            assert job.tube.ready.holds(job), f"job {job.id} is ready, but not among those of its tube"
            urgent[job.tube] += job.priority < URGENT
    for tube, count in urgent.items():
        assert tube.urgent == count
    assert limits.keys() == broker.limits.keys(), "a limit has no jobs"
    for name, jobs in limits.items():
        limit = broker.limits[name]
        limit.check()
        assert limit.name == name and limit.jobs == len(jobs)
        assert limit.reserved == sum(job.state == RESERVED for job in jobs)


def _waiting_in(tube: Tube) -> list[Client]:
    """The clients in a tube's ring, longest waiting first."""
    found: list[Client] = []
    wait = tube.waiting.after
    while isinstance(wait, Wait):
        found.append(wait.client)
        wait = wait.after
    return found


def _check_shared_extras() -> None:
    shared = NO_EXTRAS
    counters = (shared.timeouts, shared.releases, shared.buries, shared.kicks, shared.bury_sequence, shared.clears)
    rests = (shared.delay_rest, shared.ttr_rest)
    assert not (shared.key or any(counters) or any(rests)), "NO_EXTRAS, which many jobs share, has been written to"


def _check_counters(broker: Broker) -> None:
    for tube in broker.tubes.values():
        assert tube.policy is NO_POLICY or tube.counters is not UNREAD, "nobody reads what a policy does"
