"""Puts a group of calls, and the calls that run after all of them.

thumbnails = tasks.group("images")
for path in paths:
    thumbnails.add(resize).put(path)
thumbnails.then(send_mail).put("a@example.com", subject="Done")
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar, Union

from beanstalk_client.errors import NotFoundError
from beanstalk_client.tasks.steps import Steps
from beanstalk_client.tasks.task import Call, ResultCall, Task, TaskRegistry

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
else:
    P = TypeVar("P")

AnyCall = Union["Task[P, Any]", "Call[P]"]


class JobGroup:
    """Calls that have a name in common. It is made by `Tasks.group`.

    It is open while it has jobs that have not been done, deleted or moved to a dead tube; a buried job keeps it open.
    Put what comes after it last: if all its jobs are done before the next is put, it has ended in between.

    Example:
        group: JobGroup = tasks.group("images")
        group.add(resize).put("a.png")
        group.then(send_mail).put("a@example.com")

    Attributes:
        name: of the group at the server. What comes before the last slash is the tube that it belongs to.
    """

    def __init__(self, tasks: TaskRegistry, name: str) -> None:
        self.name = name
        self._tasks = tasks
        self._tube = name.rpartition("/")[0] or name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<JobGroup {self.name}>"

    def add(self, task: AnyCall[P]) -> Call[P]:
        """A call that belongs to it, still to be put.

        Example:
            group.add(resize).put("a.png")
            group.add(resize.delay("1m")).put("b.png")
        """
        made: Call[P] = _plain(task).group(self)
        return made

    def then(self, task: AnyCall[P]) -> Call[P]:
        """A call that runs when none of its jobs is left, still to be put. With `.group(other)` behind it, it is itself
        one that others come after.

        Example:
            group.then(send_mail).put("a@example.com")
        """
        made: Call[P] = _plain(task).after(self)
        return made

    def stats(self) -> dict[str, Any]:
        """What the server says of it; {} if it does not know it, or not any more.

        Example:
            print(group.stats().get("done-jobs", 0))
        """
        return dict(self._tasks._do(self._tube, self._asked("stats_group", {})))

    async def astats(self) -> dict[str, Any]:
        """As `stats`, in asyncio.

        Example:
            print((await group.astats()).get("done-jobs", 0))
        """
        return dict(await self._tasks._ado(self._tube, self._asked("stats_group", {})))

    def cancel(self) -> int:
        """Delete its jobs that do not run; what comes after it runs when none is left. Returns how many.

        Example:
            print(group.cancel(), "calls are called off")
        """
        return int(self._tasks._do(self._tube, self._asked("cancel_group", 0)))

    async def acancel(self) -> int:
        """As `cancel`, in asyncio.

        Example:
            print(await group.acancel(), "calls are called off")
        """
        return int(await self._tasks._ado(self._tube, self._asked("cancel_group", 0)))

    def _asked(self, command: str, unknown: Any) -> Steps:
        """The server's answer to a command; another one if it does not know the group."""
        try:
            return (yield methodcaller(command, self.name))
        except NotFoundError:
            return unknown


def _plain(task: Any) -> Any:
    if not isinstance(task, (Task, Call, ResultCall)):
        raise TypeError(f"{task!r} must be a task, or a call that has not been put")
    return task
