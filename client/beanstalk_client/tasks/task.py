"""Declares tasks: functions that can be called here, or put into a queue, to be called by a worker.

send_mail("a@example.com", subject="Hello")              an ordinary call
send_mail.put("a@example.com", subject="Hello")          a job, whose worker makes this call
send_mail.delay(900).key("order-17").put(…)              the same, in a quarter of an hour, unless it is cancelled
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Coroutine, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Union, cast, overload

from beanstalk_client.commands import (
    DEFAULT_PRIORITY,
    DEFAULT_TTR,
    MAX_PRIORITY,
    MAX_SECONDS,
    Duration,
    make,
    moment,
    seconds,
    seconds_of,
    sequence_of,
    text_of,
    unix_time_of,
    within,
)
from beanstalk_client.errors import NotFoundError, TooLateError
from beanstalk_client.tasks.failure import Backoff
from beanstalk_client.tasks.message import Message
from beanstalk_client.tasks.results import META, Result
from beanstalk_client.tasks.steps import Steps, TaskQueue

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from beanstalk_client.tasks.middleware import Middleware

    P = ParamSpec("P")
else:
    P = TypeVar("P")  # Python 3.9 has no other kind of variable for Generic

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

Moment = Union[datetime.datetime, float]
"""A moment with its time zone, or Unix time."""

RETRIES = 12
BACKOFF = 2.0
"""With these, a job is tried for a little more than two hours."""

RESULT_TTL = 3600.0
"""Seconds for which a result is kept."""


class Group(Protocol):
    """What a call belongs to, or comes after: `JobGroup`."""

    name: str


def _named(group: Group | str) -> str:
    name = text_of(group if isinstance(group, str) else getattr(group, "name", group), "group")
    make.stats_group(name)  # which refuses a bad one
    return name


class TaskRegistry(TaskQueue, Protocol):
    """What a task, its runner and a queue in memory need of `Tasks`."""

    errors: str | None
    middleware: list[Middleware]

    def connect(self) -> Any:
        """A new blocking client of the server, for bodies that are bytes."""

    def get(self, name: str) -> Task[..., Any] | None:
        """The task of this name, or None."""

    def _put(self, task: Task[..., Any], args: Any, kwargs: dict[str, Any], options: Options) -> int: ...

    async def _aput(self, task: Task[..., Any], args: Any, kwargs: dict[str, Any], options: Options) -> int: ...

    async def _report(self, tube: str, job_id: int, body: bytes) -> None: ...


class TaskOptions(TypedDict, total=False):
    """The options of a task, as `Tasks.task` describes them."""

    name: str | None
    tube: str | None
    retries: int
    backoff: Backoff
    timeout: Duration | None
    priority: int
    ttr: Duration
    give_up_on: type[BaseException] | Sequence[type[BaseException]]


class _Changeable(Generic[C]):
    """How calls are put. Each method returns a call that is put so."""

    if TYPE_CHECKING:

        def _having(self, **changes: Any) -> C: ...

    def delay(self, seconds: Duration) -> C:
        """A call that runs after this many seconds at the earliest. It puts nothing: `task.delay(900).put(…)` does.

        Example:
            send_mail.delay("15m").put("a@example.com")
            send_mail.key("order-17").delay("15m").put("a@example.com")
        """
        return self._having(delay=seconds, at=None)

    def at(self, moment: Moment) -> C:
        """A call that runs at this moment of the server's wall clock, or at once if that is past.

        Example:
            send_mail.key("order-17").at(time.time() + 900).put("a@example.com")

        Raises:
            TypeError, ValueError: it is no moment, or a datetime without a time zone.
        """
        if isinstance(moment, datetime.datetime) and moment.tzinfo is None:
            raise ValueError("at: the moment has no time zone; use datetime(…, tzinfo=…)")
        return self._having(delay=0.0, at=unix_time_of(moment))

    def key(self, key: str, *, replace: bool = False, hold: Duration | None = None) -> C:
        """A call with a name, which no other job of the tube has: by it, it can be cancelled.

        Example:
            send_mail.delay("15m").key("order-17", replace=True).put("a@example.com")
            send_mail.cancel("order-17")

        Args:
            replace: if there is one with this name, and it does not run yet, this one takes its place. Otherwise
                putting a second one raises ExistsError.
            hold: seconds that the name stays taken when the job is done.

        Raises:
            TypeError, ValueError: it is no key.
        """
        make.cancel_keyed(key)  # which refuses a bad one
        return self._having(key=key, replace=replace, hold=hold)

    def again(self) -> C:
        """A call that replaces the one with its key, even if that runs: then this one runs after it, once, with the
        latest arguments. A handle of its `result` may get the result of the former run.

        Example:
            index_page.key("page-42").again().put(42)
        """
        return self._having(again=True)

    def within(self, seconds: Duration) -> C:
        """A call that is due no later than this long after the first put of its job, even if it is replaced often. Each
        put must have it, with `key(…, replace=True)` or `again`.

        Example:
            index_page.key("page-42", replace=True).delay(5).within("1m").put(42)

        Args:
            seconds: the maximum time, in seconds or with a unit.
        """
        return self._having(within=seconds)

    def priority(self, priority: int) -> C:
        """A call with another priority; 0 runs before all others.

        Example:
            send_mail.delay("15m").priority(0).put("a@example.com")
        """
        return self._having(priority=priority)

    def ttr(self, seconds: Duration) -> C:
        """A call whose job goes to another worker if its own is silent for this many seconds.

        Example:
            send_mail.delay("15m").ttr("5m").put("a@example.com")
        """
        return self._having(ttr=seconds)

    def tries(self, number: int) -> C:
        """A call that the server itself buries after this many failures, also when its workers die.

        Example:
            send_mail.delay("15m").tries(5).put("a@example.com")
        """
        return self._having(tries=number)

    def ttl(self, seconds: Duration) -> C:
        """A call that expires: the server deletes it if no worker has taken it for this many seconds.

        Example:
            send_mail.delay("15m").ttl("24h").put("a@example.com")
        """
        return self._having(ttl=seconds)

    def limit(self, key: str, count: int = 1) -> C:
        """A call with a limit: of the jobs of the tube with this key, at most this many run at a time; the others wait.

        A key with a slash, such as "shop/user-42", is shared by all tubes.

        Example:
            send_mail.limit("user-42", 2).put("a@example.com")
        """
        make.put_with(b"", limit=key, limit_count=count)  # which refuses a bad one
        return self._having(limit=key, limit_count=count)

    def share(self, name: str) -> C:
        """A call that takes turns, among the jobs of its priority, with those of other names.

        Example:
            send_mail.share("customer-7").put("a@example.com")
        """
        make.put_with(b"", share=name)
        return self._having(share=name)

    def group(self, group: Group | str) -> C:
        """A call that belongs to a group: what comes after the group waits for it.

        Example:
            send_mail.group("import-17").put("a@example.com")
        """
        return self._having(group=_named(group))

    def after(self, group: Group | str) -> C:
        """A call that runs when no job of a group is left: put it after them.

        Example:
            send_mail.after("import-17").put("a@example.com")
        """
        return self._having(after=_named(group))


class Task(_Changeable["Call[P]"], Generic[P, R]):
    """A function that can be put. It is made by `Tasks.task`.

    Example:
        @tasks.task(tube="mail", retries=3)
        def send_mail(to, subject): ...

        send_mail.put("a@example.com", subject="Hello")  # send_mail is a Task

    Attributes:
        function: what it calls.
        name: what jobs call it.
        tube: where its jobs go.
        retries: how often it is tried again after it has failed.
        backoff: seconds until the first of these, doubled each time.
        timeout: seconds that a run may take; None for as long as it likes.
        default_priority: of its jobs; the smallest run first.
        default_ttr: seconds after which a job is another worker's if its own has fallen silent.
        give_up_on: exceptions after which no further try is made.
        is_async: whether the function is a coroutine function.
    """

    def __init__(
        self,
        tasks: TaskRegistry,
        function: Callable[P, R],
        *,
        name: str,
        tube: str,
        retries: int = RETRIES,
        backoff: Backoff = BACKOFF,
        timeout: Duration | None = None,
        priority: int = DEFAULT_PRIORITY,
        ttr: Duration = DEFAULT_TTR,
        give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    ) -> None:
        text_of(name, "name of a task")
        backoff = backoff if callable(backoff) else seconds_of(backoff, f"task {name}: backoff")
        timeout = None if timeout is None else seconds_of(timeout, f"task {name}: timeout")
        ttr = seconds_of(ttr, f"task {name}: ttr")
        for option, duration in (("backoff", backoff), ("timeout", timeout), ("ttr", ttr)):
            if isinstance(duration, float) and not math.isfinite(duration):
                raise ValueError(f"task {name}: {option} is {duration}: must be a finite number of seconds")
        within(f"task {name}: retries", retries, MAX_SECONDS)
        if not callable(backoff) and backoff < 0:
            raise ValueError(f"task {name}: backoff is {backoff}: must be 0 or more seconds")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"task {name}: timeout is {timeout}: must be more than 0 seconds, or None")
        within(f"task {name}: priority", priority, MAX_PRIORITY)
        if not 1 <= ttr <= MAX_SECONDS:
            raise ValueError(f"task {name}: ttr is {ttr}: must be 1 to {MAX_SECONDS} seconds")
        make.use(tube)  # which refuses a bad name
        if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _bodies(function)):
            raise TypeError(f"task {name}: {function!r} is a generator function: a call would not run its code")
        several = [give_up_on] if isinstance(give_up_on, type) else give_up_on
        kinds = sequence_of(several, f"task {name}: give_up_on")
        for each in kinds:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise TypeError(f"task {name}: give_up_on has {each!r}: must be classes of exceptions")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.tube = tube
        self.retries = retries
        self.backoff = backoff
        self.timeout = timeout
        self.default_priority = priority
        self.default_ttr = ttr
        self.give_up_on: tuple[type[BaseException], ...] = kinds
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.tasks = tasks
        try:  # not what a decorator has wrapped: it may give arguments of its own
            self._signature: inspect.Signature | None = inspect.signature(function, follow_wrapped=False)
        except (TypeError, ValueError):  # a function written in C may have none
            self._signature = None
        self._numbers = range(0) if self._signature is None else _numbers(self._signature)

    def __repr__(self) -> str:
        return f"<Task {self.name} of tube {self.tube}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def put(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Put a job that makes this call, and return its id. Blocks until the server has it.

        Example:
            job_id = send_mail.put("a@example.com", subject="Hello")

        Raises:
            TypeError: the function cannot be called with these arguments. Nothing is put.
            TypeError, ValueError: the serializer cannot write an argument. Nothing is put.
            Error: the server does not take it. ConnectionLostError: it may or may not have it.
        """
        return self.tasks._put(self, args, kwargs, _PLAIN)

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """As `put`, in asyncio.

        Example:
            job_id = await send_mail.aput("a@example.com", subject="Hello")
        """
        return await self.tasks._aput(self, args, kwargs, _PLAIN)

    def _having(self, **changes: Any) -> Call[P]:
        return Call(self, _PLAIN.having(**changes))

    @overload
    def result(self: Task[P, Coroutine[Any, Any, T]], ttl: Duration = RESULT_TTL) -> ResultCall[P, T]: ...

    @overload
    def result(self, ttl: Duration = RESULT_TTL) -> ResultCall[P, R]: ...

    def result(self, ttl: Duration = RESULT_TTL) -> Any:
        """A call whose result is kept: `task.result(3600).put(…)` returns a handle, and not an id.

        Example:
            handle = total.result(ttl="1h").put(17)
            handle.get(timeout=5)

        Args:
            ttl: how long the result is kept after the run: seconds, "1h", or a timedelta.
        """
        return ResultCall(self, _PLAIN.having(result=ttl))

    def cancel(self, which: str | int) -> bool:
        """Call off a job that is still delayed, by its key or id. True: it never runs. False: too late, it has run,
        runs, or is about to; or there is none.

        Example:
            send_mail.key("order-17").delay("15m").put("a@example.com")
            send_mail.cancel("order-17")

        Raises:
            UnknownCommandError: the server is a beanstalkd, which cannot do this.
        """
        return bool(self.tasks._do(self.tube, _change("cancel", which)))

    async def acancel(self, which: str | int) -> bool:
        """As `cancel`, in asyncio.

        Example:
            await send_mail.acancel("order-17")
        """
        return bool(await self.tasks._ado(self.tube, _change("cancel", which)))

    def reprioritize(self, which: str | int, priority: int) -> bool:
        """Give a job another priority, by its key or id; return False if it runs, has run or does not exist.

        Example:
            send_mail.key("order-17").put("a@example.com")
            send_mail.reprioritize("order-17", 0)

        Args:
            priority: 0 runs before all others.

        Raises:
            UnknownCommandError: the server is a beanstalkd, which cannot do this.
        """
        return bool(self.tasks._do(self.tube, _change("reprioritize", which, priority)))

    async def areprioritize(self, which: str | int, priority: int) -> bool:
        """As `reprioritize`, in asyncio.

        Example:
            await send_mail.areprioritize("order-17", 0)
        """
        return bool(await self.tasks._ado(self.tube, _change("reprioritize", which, priority)))

    def body(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """The body of a job that makes this call, to put it by other means. No middleware sees it.

        Example:
            queue.put(send_mail.body("a@example.com", subject="Hello"))
        """
        return self.encode(self.message(args, kwargs))

    def message(self, args: Any, kwargs: dict[str, Any], result: float | None = None) -> Message:
        """This call.

        Example:
            message = send_mail.message(["a@example.com"], {"subject": "Hello"})

        Raises:
            TypeError: the function cannot be called with these arguments.
        """
        self._check(args, kwargs)
        return Message(self.name, args, kwargs, {} if result is None else {META: result})

    def _check(self, args: Any, kwargs: dict[str, Any]) -> None:
        """
        Raises:
            TypeError: the function cannot be called with these arguments.
        """
        if self._signature is not None and (kwargs or len(args) not in self._numbers):
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"task {self.name}: {error}") from None

    def encode(self, message: Message) -> bytes:
        """The body of a job that makes a call.

        Example:
            body = send_mail.encode(send_mail.message(["a@example.com"], {}))

        Raises:
            TypeError, ValueError: the serializer cannot write it.
        """
        try:
            return message.body(self.tasks.serializer)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"task {self.name}{self._unwritable(message)}: {error}") from error

    def _unwritable(self, message: Message) -> str:
        """Which argument the serializer cannot write, for people."""
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        names = [each.name for each in parameters if each.kind < inspect.Parameter.KEYWORD_ONLY]
        numbers = range(len(names) + 1, len(message.args) + 1)  # of those that `*names` takes
        for name, value in (*zip((*names, *numbers), message.args), *message.kwargs.items()):
            try:
                Message(self.name, [value], {}, {}).body(self.tasks.serializer)
            except (TypeError, ValueError):
                return f", argument {name}"
        return ""


def _change(command: str, which: str | int, *arguments: int) -> Steps:
    """Change a job by its key or id; return False if it is too late or missing."""
    try:
        yield methodcaller(f"{command}_keyed" if isinstance(which, str) else command, which, *arguments)
    except (NotFoundError, TooLateError):
        return False
    return True


def _bodies(function: Any) -> tuple[Any, Any]:
    """What runs when a function, or an object that can be called, is called."""
    return function, getattr(type(function), "__call__", None)  # noqa: B004


def _numbers(signature: inspect.Signature) -> range:
    """Return the numbers of positional arguments that a call without keyword arguments may have.

    A call with another number may be right, too: it must be bound.
    """
    parameters = signature.parameters.values()
    if any(each.kind == each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return range(0)
    positional = [each for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
    required = [each for each in positional if each.default is each.empty]
    return range(len(required), len(positional) + 1)


_DURATIONS = ("delay", "hold", "result", "ttl", "ttr", "within")
_DEMANDS = ("after", "again", "at", "group", "hold", "key", "limit", "replace", "share", "tries", "ttl", "within")


@dataclasses.dataclass
class Options:
    """How a call is put, where it differs from its task."""

    delay: float = 0
    at: float | None = None
    key: str = ""
    replace: bool = False
    again: bool = False
    within: float | None = None
    hold: float | None = None
    priority: int | None = None
    ttr: float | None = None
    tries: int | None = None
    ttl: float | None = None
    result: float | None = None
    after: str = ""
    group: str = ""
    limit: str = ""
    limit_count: int = 1
    share: str = ""

    def having(self, **changes: Any) -> Options:
        """A copy that differs.

        Raises:
            TypeError, ValueError: what no server takes.
        """
        for name in _DURATIONS:
            if changes.get(name) is not None:
                changes[name] = seconds_of(changes[name], name)
                seconds(name, changes[name])
        for name, most in (("priority", MAX_PRIORITY), ("tries", MAX_SECONDS)):
            if changes.get(name) is not None:
                within(name, changes[name], most)
        if changes.get("at") is not None:
            moment(changes["at"])
        return dataclasses.replace(self, **changes)

    def demands(self) -> dict[str, Any]:
        """What put-with is given beside what put is given; {} if a `put` that beanstalkd knows can say it.

        Raises:
            ValueError: `again` has no key, or `within` replaces nothing.
        """
        if self.again and not self.key:
            raise ValueError("again requires a key: task.key(…).again().put(…)")
        if self.within and not (self.replace or self.again):
            raise ValueError("within requires replace: task.key(…, replace=True).within(…).put(…)")
        values = {name: getattr(self, name) for name in _DEMANDS}
        demands = {
            name: value for name, value in values.items() if value is not None and value is not False and value != ""
        }
        if self.again:
            demands["replace"] = True
        if self.limit:
            demands["limit_count"] = self.limit_count
        return demands


_PLAIN = Options()


class _Call(_Changeable[C], Generic[P, C]):
    """A call of a task that is still to be put. Each method returns another call, so one can be kept and put often.

    Durations are seconds, a text with a unit ("90s", "15m", "24h", "30d"), or a timedelta. One that is neither put nor
    cancelled, and from which no other is made, gives a RuntimeWarning when it is forgotten.
    """

    def __init__(self, task: Task[P, Any], options: Options) -> None:
        self._is_used = options is _PLAIN
        self._task = task
        self._options = options

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._is_used or is_ending():  # what a module has kept may be for another program to put
            return
        told = ", ".join(name for name, value in vars(self._options).items() if value != getattr(_PLAIN, name))
        warnings.warn(
            f"a call of task {self._task.name} with {told or 'delay'} was never put: end it with "
            ".put(…), which takes the arguments of the task; delay takes only a duration and puts nothing",
            RuntimeWarning,
            stacklevel=2,
        )

    def _having(self, **changes: Any) -> C:
        self._is_used = True
        return cast(C, type(self)(self._task, self._options.having(**changes)))

    def _use(self) -> Task[P, Any]:
        self._is_used = True
        return self._task


class Call(_Call[P, "Call[P]"]):
    """A call that puts a job and returns its id.

    Example:
        reminder: Call = send_mail.delay("24h")
        reminder.put("a@example.com")
    """

    def result(self, ttl: Duration = RESULT_TTL) -> ResultCall[P, Any]:
        """Its result is kept, as with `Task.result`, which also says its type: `total.result().key("order-17")`.

        Example:
            handle = total.key("order-17").result(ttl="1h").put(17)
        """
        self._is_used = True
        return ResultCall(self._task, self._options.having(result=ttl))

    def put(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Put a job that makes this call, and return its id. Blocks until the server has it.

        Example:
            job_id = send_mail.delay("15m").put("a@example.com")

        Raises:
            ExistsError: the tube has a job with this key. Nothing is put.
            TooLateError: the job that is to be replaced runs already, or its key is held. Nothing is put.
            ValueError: `again` has no key, or `within` replaces nothing. Nothing is put.
            UnsupportedError: the server is a beanstalkd, which knows `delay` and `priority` only. Nothing is put.
            TypeError: the function cannot be called with these arguments. Nothing is put.
            TypeError, ValueError: the serializer cannot write an argument. Nothing is put.
            Error: the server does not take it. ConnectionLostError: it may or may not have it.
        """
        return self._use().tasks._put(self._task, args, kwargs, self._options)

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """As `put`, in asyncio.

        Example:
            job_id = await send_mail.delay("15m").aput("a@example.com")
        """
        return await self._use().tasks._aput(self._task, args, kwargs, self._options)


class ResultCall(_Call[P, "ResultCall[P, R]"], Generic[P, R]):
    """A call that puts a job whose result is kept, and returns a handle.

    Example:
        call: ResultCall = total.result(ttl="1h")
        print(call.put(17).get(timeout=5))
    """

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Put a job that makes this call; return its result, which is still to come.

        Example:
            handle = total.result(ttl="1h").put(17)

        Raises:
            UnsupportedError: the server is a beanstalkd, which has no keys. Nothing is put.
            Error, TypeError, ValueError: as `Call.put`.
        """
        task = self._use()
        return Result(task.tasks, task.tube, task.tasks._put(task, args, kwargs, self._options))

    async def aput(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """As `put`, in asyncio.

        Example:
            handle = await total.result(ttl="1h").aput(17)
            value = await handle
        """
        task = self._use()
        return Result(task.tasks, task.tube, await task.tasks._aput(task, args, kwargs, self._options))
