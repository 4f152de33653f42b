"""Members of groups: who joins and leaves one, and what waits for its end (groups.py)."""

from __future__ import annotations

from beanstalk_server.queue.groups import END_CANCELLED, END_DEAD, END_UNDONE, EndedGroups, Group
from beanstalk_server.queue.job import NEVER, Job, Terms
from beanstalk_server.queue.memory import group_cost
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.recording import record_delete, record_group, record_leave, record_put
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.wheel import OVERDUE


def joins(job: Job) -> bool:
    """Whether a job that is put is a member of a group: not if it takes the place of a dead letter."""
    terms = job.terms()
    return terms is not None and terms.labels is not None and bool(terms.labels.group) and not terms.origin


def must_wait(queue: QueueState, labels: Labels) -> bool:
    """Whether a job with these labels is to wait for a group: one that is open, or may begin."""
    group = queue.groups.get(labels.after)
    return labels.after_waits if group is None or not group.has_begun else bool(group.members)


def record_labelled(
    queue: QueueState, job: Job, labels: Labels, delay: int, now: int, replaced: Job | None = None
) -> bool:
    """Record a job with labels that is about to be put, and before it the beginning of its group; False if there is
    no memory for them, or the journal has no room. The group is in `Labels.joined` then."""
    groups = queue.groups
    group: Group | None = None
    cost = 0
    is_member = joins(job)
    if is_member:
        group = groups.get(labels.group)
        if group is None:
            cost = group_cost(labels.group)
    if job.deadline == NEVER and groups.get(labels.after) is None:
        cost += group_cost(labels.after)
    if not queue.memory.admits(job, replaced, cost):
        return False
    is_new = is_member and (group is None or not group.id)
    if is_new:
        group = open_group(queue, labels.group, now)
        if group is None:
            return False
    if record_put(queue, job, delay, now):
        labels.joined = group
        return True
    if is_new and group is not None:
        record_delete(queue, group)
        groups.undo_begin(group)
        if groups.get(labels.group) is None:
            queue.memory.remove_group(labels.group)
    return False


def open_group(queue: QueueState, name: str, now: int) -> Group | None:
    """The group of this name, which has begun, and is recorded; None if the journal has no room for it."""
    groups = queue.groups
    group = groups.get(name)
    is_new = group is None
    if group is None:
        group = Group(name, now)
    elif group.id:
        return group
    group.id = queue.next_id
    queue.next_id += queue.stride
    if not group.has_begun:
        group.created_at = now
    if not record_group(queue, group):
        group.id = 0
        return None
    groups.begin(group)
    if is_new:
        queue.memory.add_group(name)
    return group


def leave_group(queue: QueueState, group: Group, labels: Labels) -> None:
    """Let a job be a member no longer; the group has counted it."""
    if queue.groups.leave(group, labels):
        end_group(queue, group)


def end_group(queue: QueueState, group: Group) -> None:
    """Let go what waits for a group that has begun and has no member left: `end_groups` follows at once."""
    queue.groups.end(group)
    time_groups(queue)


def pass_on_group(queue: QueueState, old: Job, fresh: Job) -> None:
    """Let a job that replaces another one join its group. If it is another one, that counts the old job."""
    labels = fresh.labels()
    before = old.labels()
    group = None if before is None else before.joined
    if labels is not None and labels.joined is not None:
        if group is labels.joined and before is not None:
            queue.groups.replace(group, before, fresh, labels)
            return
        queue.groups.join(labels.joined, fresh, labels)
    if group is not None and before is not None:
        group.count(END_CANCELLED)
        record_leave(queue, group, END_CANCELLED, None)
        leave_group(queue, group, before)


def review_group(queue: QueueState, job: Job, terms: Terms, now: int) -> None:
    """Let a job whose tube has changed leave its group, if it has become a dead letter; or join it, if it is none
    any more."""
    labels = terms.labels
    if labels is None or not labels.group:
        return
    group = labels.joined
    if group is None and not terms.origin:
        group = open_group(queue, labels.group, now)
        if group is not None:  # else there is no room to say so: it is none before the next start
            group.count(END_UNDONE)
            record_leave(queue, group, END_UNDONE, None)
            queue.groups.join(group, job, labels)
    elif group is not None and terms.origin:
        group.count(END_DEAD)
        record_leave(queue, group, END_DEAD, None)
        leave_group(queue, group, labels)


def time_groups(queue: QueueState) -> None:
    """Let `end_groups` follow at once."""
    groups = queue.groups
    if not (groups.is_linked() and groups.deadline == OVERDUE):
        queue.wheel.set(groups, OVERDUE)


def stop_awaiting(queue: QueueState, job: Job) -> None:
    labels = job.labels()
    assert labels is not None, "a job that waits for a group has its name"
    group = queue.groups.stop_awaiting(labels)
    if group is not None and not group.has_begun:
        forget_group(queue, group)


def forget_group(queue: QueueState, group: Group) -> None:
    queue.memory.remove_group(group.key)
    queue.groups.forget(group)


def drop_labels(queue: QueueState, job: Job, labels: Labels) -> None:
    """Take a job that is about to be forgotten out of what its labels have brought it into."""
    if labels.awaited is not None:  # a clear has taken it out of its queue
        stop_awaiting(queue, job)
    if labels.joined is not None:
        leave_group(queue, labels.joined, labels)


def time_forgetting(queue: QueueState, ended: EndedGroups) -> None:
    """Let `forget_groups` follow in time."""
    due = ended.next_due()
    if due >= 0 and not (ended.is_linked() and ended.deadline <= due):
        queue.wheel.set(ended, due)
