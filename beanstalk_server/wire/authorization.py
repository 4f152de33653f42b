"""Authorization: whether the user of a session may give a command.

A row of the table of commands names a right and a scope, the tubes that the right is asked for. One function decides by
them for all commands. It is reached only where a session has a user.

What a user may not do is answered FORBIDDEN; but a tube to which it has no right at all does not exist for it, so where
a command can answer NOT_FOUND, it does. The name of the tube decides, before anything is looked up in it: so no reply
tells whether such a tube exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.access.rights import ADMIN, CONSUME, INSPECT, PRODUCE, User
from beanstalk_server.queue.policy import Labels
from beanstalk_server.tube_names import home_of
from beanstalk_server.wire import replies
from beanstalk_server.wire.grammar import Arguments

if TYPE_CHECKING:
    from beanstalk_server.wire.commands import Command
    from beanstalk_server.wire.session import Session

NO_TUBE: Final = 0
"""The command asks for no right."""

TUBE_IN_USE: Final = 1
"""The tube that the client uses."""

TUBE_NAMED: Final = 2
"""The tube that the command names, whether it exists or not."""

TUBE_OF_JOB: Final = 3
"""The tube of the job whose id the command gives."""

WATCHED_TUBES: Final = 4
"""The tubes that the client watches. It has the right to all of them, so it is enough that there is one."""

EVERY_TUBE: Final = 5
"""All tubes, also those that do not exist."""

TWO_TUBES: Final = 6
"""The two tubes that the command names, whether they exist or not."""

TUBES_OF_JOBS: Final = 7
"""The tube of each of the jobs whose ids the command gives: those to which the user has no right are not found."""


_NAMES: Final = {
    PRODUCE: "the right to produce",
    CONSUME: "the right to consume",
    INSPECT: "the right to inspect",
    ADMIN: "the right to administer",
}


def refusal(session: Session, user: User, command: Command, arguments: Arguments) -> bytes:
    """The reply to a command that the user may not give; b"" if it may."""
    scope = command.scope
    if scope == WATCHED_TUBES:
        return b"" if session.watched else replies.FORBIDDEN
    if scope in (NO_TUBE, TUBES_OF_JOBS) or user.everywhere & command.right:
        return b""
    if scope == EVERY_TUBE:
        rights = user.everywhere
    else:
        if scope == TUBE_IN_USE:
            name = session.use.name
        elif scope in (TUBE_NAMED, TWO_TUBES):
            name = arguments.name
            if not name:  # it is malformed, and the command says so
                return b""
        else:
            name = session.queue.tube_of(arguments.job_id)
            if not name:
                return replies.NOT_FOUND
        if not user.remembers(name):
            session.budget -= user.weight >> 6
        rights = user.rights(name)
        if scope == TWO_TUBES and rights & command.right:
            name = arguments.target
            if not user.remembers(name):
                session.budget -= user.weight >> 6
            rights = user.rights(name)
    if rights & command.right:
        return b""
    return replies.NOT_FOUND if not rights and command.hides else replies.FORBIDDEN


def need(session: Session, command: Command, arguments: Arguments) -> str:
    """The right that a refused command needs, and to which tubes, for the log."""
    right = _NAMES.get(command.right, "a right")
    if command.scope == TUBE_IN_USE:
        where = f"in tube {session.use.name}"
    elif command.scope == TUBE_NAMED:
        where = f"in tube {arguments.name}"
    elif command.scope == TWO_TUBES:
        where = f"in tubes {arguments.name} and {arguments.target}"
    elif command.scope == TUBE_OF_JOB:
        where = f"in tube {session.queue.tube_of(arguments.job_id)}"
    else:
        where = "in a watched tube" if command.scope == WATCHED_TUBES else "in all tubes"
    return f"{command.name} needs {right} {where}"


def any_tube(_: str) -> bool:
    """Whether a tube of this name would belong to a server that has all tubes."""
    return True


def label_refusal(session: Session, labels: Labels) -> bytes:
    """The reply to a put of a job with labels whose groups or limit it may have nothing to do with; b"" if it may.

    A group belongs to a tube (`home_of`): a user who may produce to that tube may put jobs into the group, and let jobs
    wait for it. The tube must be in the same shard as the job's. The same applies to a limit with a slash in its name;
    any other belongs to the tube of the job.
    """
    user = session.user
    if user is not None and user.everywhere & PRODUCE:
        user = None
    is_of_shard = session.server.names_tube_of_shard
    if user is None and is_of_shard is any_tube:
        return b""
    for name in (labels.group, labels.after, labels.limit if "/" in labels.limit else ""):
        if not name:
            continue
        home = home_of(name)
        if user is not None:
            if not user.remembers(home):
                session.budget -= user.weight >> 6
            if not user.rights(home) & PRODUCE:
                return replies.FORBIDDEN
        if not is_of_shard(home):
            return replies.OTHER_SHARD
    return b""
