"""Holds the tasks of a program, the address of their server, and the clients that put them: `Tasks`.

Clients are made when they are needed and kept (`clients.py`): for `put` one for each thread, for `aput` one for each
event loop. A thread's client is closed when the thread ends, that of an event loop when the loop ends.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from beanstalk_client.address import read_addresses
from beanstalk_client.clients import LoopClients, ThreadClients
from beanstalk_client.commands import MAX_ID, Duration, function_of, make, seconds_of, sequence_of, text_of, within
from beanstalk_client.core import ClientOptions
from beanstalk_client.errors import UnsupportedError
from beanstalk_client.tasks.failure import ERRORS, tries_for
from beanstalk_client.tasks.message import Serializer
from beanstalk_client.tasks.middleware import Middleware, Put, around
from beanstalk_client.tasks.results import Result
from beanstalk_client.tasks.steps import Steps, run_steps, run_steps_async
from beanstalk_client.tasks.task import Options, Task, TaskOptions
from beanstalk_client.tasks.values import Values

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import ParamSpec, Unpack

    from beanstalk_client.asynchronous import AsyncClient
    from beanstalk_client.blocking import Client
    from beanstalk_client.memory import MemoryQueue
    from beanstalk_client.schedules import Moments, Schedule
    from beanstalk_client.schedules.schedule import ScheduleOptions
    from beanstalk_client.tasks.group import JobGroup

    P = ParamSpec("P")

R = TypeVar("R")


NO_RESULTS = "results need jobs with keys, which beanstalkd does not have"
NO_RESULT_YET = "inside a transaction there is no job yet, so no result(): use put(), or put after the commit"
_NOTHING = contextlib.nullcontext()
_KNOWS_PUT_WITH = methodcaller("knows", "put-with")


class Outbox(Protocol):
    """What `Tasks` needs of an outbox (`beanstalk_client.outbox`)."""

    def client(self, tube: str) -> Any:
        """Return what records commands in the current database transaction; None outside a transaction."""


class Tasks:
    """The tasks of a program.

    Example:
        tasks = Tasks("beanstalk://127.0.0.1:11300", tube="shop")

        @tasks.task
        def send_mail(to, subject): ...

    Args:
        addresses: of the server, or of the nodes of a cluster, as `Client` takes them.
        tube: where the jobs of tasks go that name no other.
        types: enums and dataclasses that arguments and results may have, beside those in annotations of tasks.
        serializer: how bodies are written and read; None for JSON with the types that docs/workers.md lists.
        middleware: what is wrapped around puts and runs; the first is the outermost.
        errors: what the name of a tube ends with where errors of buried jobs are put for people to read, one character
            at the least; None for nowhere.
        outbox: where jobs go that are put inside a database transaction, so that they exist if and only if it commits;
            None for nowhere: they are put at once. See docs/outbox.md.
        lifespan: makes an asynchronous context manager that a worker enters before its first job, and leaves after its
            last: for what all its tasks share, such as a pool of connections to a database.
        options: any keyword of `Client` that says how a server is reached: tls, server_name, token, connect_timeout,
            timeout, reconnect_timeout.

    Attributes:
        only_in_memory: whether to connect to a server is an error: for tests, in which it means that `in_memory` was
            forgotten. `Tasks.only_in_memory = True` is for all Tasks of a program.

    Raises:
        TypeError, ValueError: an option that no client has, or an argument that cannot be.
    """

    only_in_memory: bool = False

    def __init__(
        self,
        addresses: Any = "127.0.0.1:11300",
        *,
        tube: str = "default",
        types: Sequence[type] = (),
        serializer: Serializer | None = None,
        middleware: Sequence[Middleware] = (),
        errors: str | None = ERRORS,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        outbox: Outbox | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        for name in options:
            if name not in ClientOptions.__annotations__:
                known = ", ".join(sorted(ClientOptions.__annotations__))
                raise TypeError(f"unknown option {name} of Tasks; the options of clients are {known}")
        read_addresses(addresses)  # which refuses a bad one
        make.use(tube)  # likewise
        if errors is not None:
            if not text_of(errors, "errors"):  # reports would be taken for jobs, fail, and be reported
                raise ValueError("errors is '': must be a suffix for tube names, or None for no reports")
            make.use(f"TUBE{errors}")
        if lifespan is not None:
            function_of(lifespan, "lifespan")
        self.addresses = addresses
        self.tube = tube
        values = Values(sequence_of(types, "types"), lambda: [task.function for task in self._tasks.values()])
        self.serializer: Serializer = values.serializer if serializer is None else Serializer(*serializer)
        self.middleware: list[Middleware] = list(sequence_of(middleware, "middleware"))
        for each in self.middleware:
            if not isinstance(each, Middleware):
                raise TypeError(f"middleware has {each!r}: must be an instance of a subclass of Middleware")
        self.errors = errors
        self.lifespan = lifespan
        self.outbox = outbox
        self.options = options
        self._tasks: dict[str, Task[..., Any]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._memory: MemoryQueue | None = None
        self._of_threads: ThreadClients[bytes] = ThreadClients(self.connect)
        self._of_loops: LoopClients[bytes] = LoopClients(self.connect_async)

    def __repr__(self) -> str:
        return f"<Tasks: {', '.join(self._tasks) or 'none'}>"

    # Contents

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task: `@tasks.task`, or `@tasks.task(tube="mail", retries=3)`.

        Durations are seconds, a text with a unit ("90s", "15m", "24h", "30d"), or a timedelta.

        Example:
            @tasks.task(tube="mail", retries=3, backoff="10s")
            def send_mail(to, subject): ...

        Args:
            name: what jobs call it; by default that of the function. Keep it when the function gets another one, as
                long as there are jobs.
            tube: where its jobs go.
            retries: how often it is tried again after it has failed. Then its job is buried.
            backoff: seconds until the first of these tries, doubled each time, up to a day; or a function of the
                failure's number, 1 or more.
            timeout: seconds that a run may take. A coroutine is cancelled then; a plain function cannot be ended: it
                is given up, and goes on.
            priority: of its jobs; the smallest run first.
            ttr: seconds after which a job is another worker's if its own has fallen silent. It may run for longer: the
                worker touches it.
            give_up_on: the class of exceptions after which no further try is made, or several.

        Raises:
            TypeError, ValueError: there is a task of this name, or an argument cannot be.
        """

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            given: Any = {
                **options,
                "name": options.get("name") or function_of(function, "function").__name__,
                "tube": options.get("tube") or self.tube,
            }
            made: Task[..., Any] = Task(self, function, **given)
            if made.name in self._tasks:
                raise ValueError(f"a task {made.name} already exists; give one of the two another name: name=…")
            self._tasks[made.name] = made
            return made

        return make if function is None else make(function)

    def get(self, name: str) -> Task[..., Any] | None:
        """The task of this name, or None.

        Example:
            task = tasks.get("send_mail")
        """
        return self._tasks.get(name)

    @property
    def tubes(self) -> list[str]:
        """The tubes of all tasks, sorted.

        Example:
            queue = tasks.connect(watch=tasks.tubes)
        """
        return sorted({task.tube for task in self._tasks.values()})

    def _have_plain(self, tubes: Collection[str]) -> bool:
        """Whether a task of these tubes is a plain function."""
        return any(task.tube in tubes and not task.is_async for task in self._tasks.values())

    @property
    def where(self) -> str:
        """Where the server is, for people; without a token.

        Example:
            print("putting to", tasks.where)
        """
        return ", ".join(map(str, read_addresses(self.addresses)[0]))

    # Groups

    def group(self, tube: str | None = None, name: str | None = None) -> JobGroup:
        """A new group of calls: what comes after it runs when all of them have.

        Example:
            images = tasks.group("images")
            images.add(resize).put("a.png")
            images.then(send_mail).put("a@example.com", subject="Done")

        Args:
            tube: that it belongs to, which decides who may use it, and where in a cluster it is; by default that of
                `Tasks`. With several shards, the jobs must be of tubes in the same shard.
            name: of its own within that tube; by default one that no other group has.

        Raises:
            ValueError: it is too long, or no name.
        """
        from beanstalk_client.tasks.group import JobGroup

        whole = f"{text_of(tube or self.tube, 'tube')}/{text_of(name or secrets.token_hex(8), 'name')}"
        make.stats_group(whole)  # which refuses a bad one
        return JobGroup(self, whole)

    # Schedules

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Let a task be due at the moments of a cron expression: `@tasks.cron("0 8 * * mon")` above `@tasks.task`.

        Example:
            @tasks.cron("0 8 * * mon", tz="Europe/Berlin")
            @tasks.task
            def weekly_report(): ...

        Args:
            tz: the name of a time zone.
            missed: what becomes of firings that no scheduler has put in time: "skip", "once" (the last one; the
                default) or "all".
            name: the schedule's; by default the task's. Keep it when the expression changes.
            args, kwargs: what the task is called with; `MOMENT` of `beanstalk_client.schedules` is the firing's moment.
            ttl, tries, limit, limit_count: as for `put_with`. With "skip", `ttl` is by default the time to the next
                firing.

        Raises:
            ValueError: the expression or the zone is none, or there is a schedule of this name.
            ImportError: the extra `cron` is not installed.
        """
        from beanstalk_client.schedules import Cron

        return self._schedule(Cron(expression, tz), options)

    def every(
        self,
        interval: Duration | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[Task[P, R]], Task[P, R]]:
        """Let a task be due again and again: `@tasks.every(minutes=5)` above `@tasks.task`.

        Example:
            @tasks.every(minutes=5)
            @tasks.task
            def fetch_rates(): ...

        Args:
            interval: what the others say in parts: whole seconds, "5m", or a timedelta. Its multiples are counted from
                the beginning of Unix time, so that five minutes are those that the clock shows.
            options: as with `cron`.

        Raises:
            ValueError: the interval is not above 0, or there is a schedule of this name.
        """
        from beanstalk_client.schedules import Every

        try:
            given = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
            if interval is not None:
                given += datetime.timedelta(seconds=seconds_of(interval, "interval"))
        except OverflowError:
            raise ValueError("interval: the sum of its parts is too long") from None
        return self._schedule(Every(given), options)

    def _schedule(self, moments: Moments, options: ScheduleOptions) -> Callable[[Task[P, R]], Task[P, R]]:
        from beanstalk_client.schedules import Schedule

        def add(task: Task[P, R]) -> Task[P, R]:
            if not isinstance(task, Task):
                raise TypeError("a schedule decorator must be above @tasks.task, not below it")
            given: Any = {**options, "name": options.get("name") or task.name}
            made = Schedule(moments=moments, task=task, **given)
            if made.name in self._schedules:
                raise ValueError(f"a schedule {made.name} already exists; give one of the two another name: name=…")
            self._schedules[made.name] = made
            return task

        return add

    @property
    def schedules(self) -> list[Schedule]:
        """What `cron` and `every` have been told, in this order.

        Example:
            Scheduler(tasks.connect, tasks.schedules).run()
        """
        return list(self._schedules.values())

    # Clients

    def connect(self, **options: Unpack[ClientOptions]) -> Client[bytes]:
        """A new blocking client of the server, for bodies that are bytes.

        Example:
            with tasks.connect(use="mail") as queue:
                queue.put(send_mail.body("a@example.com"))
        """
        self._look_for_memory()
        from beanstalk_client.blocking import Client

        return Client(self.addresses, encoding=None, **cast(ClientOptions, {**self.options, **options}))

    def connect_async(self, **options: Unpack[ClientOptions]) -> AsyncClient[bytes]:
        """A new client for asyncio, which is still to be connected.

        Example:
            async with tasks.connect_async() as queue:
                print(await queue.stats_tube("mail"))
        """
        self._look_for_memory()
        from beanstalk_client.asynchronous import AsyncClient

        return AsyncClient(self.addresses, encoding=None, **cast(ClientOptions, {**self.options, **options}))

    def _look_for_memory(self) -> None:
        if self.only_in_memory:
            raise RuntimeError(
                "a test would connect to a server: use `with tasks.in_memory() as queue:`, or set only_in_memory to "
                "False for a test that needs a server"
            )

    def close(self) -> None:
        """Close the clients that `put` has made, in all threads. None of them may be at it.

        Example:
            tasks.close()
        """
        self._of_threads.close()

    async def aclose(self) -> None:
        """Close the clients that `aput` has made in this event loop.

        Example:
            await tasks.aclose()
        """
        await self._of_loops.close()

    def _client(self, tube: str) -> Any:
        """This thread's client, using a tube; or one of the queue in memory, or of the outbox, if there is one.

        Raises:
            RuntimeError: an event loop runs in this thread, and would wait.
        """
        if self._memory is not None:
            return self._memory.client(tube)
        recorder = self._recorder(tube)
        if recorder is not None:
            if recorder.is_async:
                raise RuntimeError("the database transaction is asynchronous: use await aput, acancel, … instead")
            return recorder
        self._look_for_memory()
        asyncio = sys.modules.get("asyncio")  # no event loop runs before its import
        if asyncio is not None and asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "a blocking call would block the event loop: await the asyncio variant "
                "instead (aput, aget, acancel, …), or use asyncio.to_thread"
            )
        client = self._of_threads.get()
        if client._session.used != tube:
            client.use(tube)
        return client

    @contextlib.asynccontextmanager
    async def _aclient(self, tube: str) -> AsyncIterator[Any]:
        """This event loop's client, which uses a tube until the block ends; or another one, as in `_client`."""
        if self._memory is not None:
            yield self._memory.client(tube)
            return
        recorder = self._recorder(tube)
        if recorder is not None:
            yield recorder
            return
        self._look_for_memory()
        async with (await self._of_loops.get()).using(tube) as client:
            yield client

    def _recorder(self, tube: str) -> Any:
        """What records commands in the current database transaction; None outside one, or without an outbox."""
        return None if self.outbox is None else self.outbox.client(tube)

    def _do(self, tube: str, steps: Steps) -> Any:
        """Take steps with this thread's client, which uses a tube; return what they return."""
        return run_steps(steps, functools.partial(self._client, tube))

    async def _ado(self, tube: str, steps: Steps) -> Any:
        """As `_do`, with the client of this event loop."""
        return await run_steps_async(steps, functools.partial(self._aclient, tube))

    # Puts

    def _put(self, task: Task[..., Any], args: Any, kwargs: dict[str, Any], options: Options) -> int:
        put = Put(task.message(args, kwargs, options.result), task.tube)
        with around(self.middleware, "putting", put, Exception) if self.middleware else _NOTHING:
            put.job_id = self._do(task.tube, self._put_steps(task, put, options))
            return put.job_id

    async def _aput(self, task: Task[..., Any], args: Any, kwargs: dict[str, Any], options: Options) -> int:
        put = Put(task.message(args, kwargs, options.result), task.tube)
        with around(self.middleware, "putting", put, Exception) if self.middleware else _NOTHING:
            put.job_id = await self._ado(task.tube, self._put_steps(task, put, options))
            return put.job_id

    def _put_steps(self, task: Task[..., Any], put: Put, options: Options) -> Steps:
        if options.result is not None and self._memory is None and self._recorder(task.tube) is not None:
            raise RuntimeError(NO_RESULT_YET)
        if options.replace or options.again:
            # makes each body unique: by it, a worker that was cut off finds out that its job was replaced
            put.message.meta["put_id"] = secrets.token_hex(8)
        body = task.encode(put.message)
        priority = task.default_priority if options.priority is None else options.priority
        demands = options.demands()
        needs_tries = options.tries is None and self._memory is None
        if needs_tries or options.result is not None:
            has_put_with = yield _KNOWS_PUT_WITH
            if options.result is not None and not has_put_with:
                raise UnsupportedError(NO_RESULTS)
            if needs_tries and has_put_with:
                demands["tries"] = tries_for(task.retries)
        put_job = "put_with" if demands else "put"
        return (yield methodcaller(put_job, body, priority, options.delay, options.ttr or task.default_ttr, **demands))

    async def _report(self, tube: str, job_id: int, body: bytes) -> None:
        """Put what a person should read about a buried job: once for each job, where the server can do that."""
        if self._memory is not None:
            self._memory.client(tube).put_with(body, key=f"job-{job_id}", replace=True)
            return
        from beanstalk_client.tasks.reports import put_report

        await (await self._of_loops.get()).connect()  # which waits for longer than a put
        async with self._aclient(tube) as client:
            await put_report(client, job_id, body)

    # Results

    def result_of(self, tube: str, job_id: int) -> Result[Any]:
        """The result of a call that was put with `result`, perhaps by another process: `handle.tube, handle.job_id`.

        Example:
            value = tasks.result_of("shop", 42).get(timeout=5)
        """
        make.use(tube)  # which refuses a bad one
        return Result(self, tube, within("job_id", job_id, MAX_ID))

    @property
    def is_in_memory(self) -> bool:
        """Whether jobs are put into a queue in memory (`in_memory`).

        Example:
            assert tasks.is_in_memory, "this test needs no server"
        """
        return self._memory is not None

    # Tests

    @contextlib.contextmanager
    def in_memory(
        self, now: float | None = None, *, max_job_size: int = 65535, schedules: bool = True
    ) -> Iterator[MemoryQueue]:
        """Put into a queue in memory until the block ends, whose clock the test moves: for tests of what uses tasks.

        Example:
            with tasks.in_memory() as queue:
                send_mail.delay(60).put("a@example.com")
                queue.advance(60)
                queue.run()

        Args:
            now: what its clock says to begin with, in Unix time; by default what the machine's says.
            max_job_size: bytes of the largest body that it takes, as the server is told with -z.
            schedules: whether schedules fire, as beside a scheduler that is started with the test.
        """
        from beanstalk_client.memory import MemoryQueue

        before = self._memory
        self._memory = MemoryQueue(self, now, max_job_size=max_job_size, schedules=schedules)
        try:
            yield self._memory
        finally:
            self._memory = before
