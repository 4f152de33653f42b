"""A broker for taskiq: a message is a job, the server keeps its `delay` or `at`, and it may have a key.

    from beanstalk_client.integrations.taskiq import BeanstalkBroker

    broker = BeanstalkBroker("beanstalk://127.0.0.1:11300")

    @broker.task
    async def remind(order: int) -> None: ...

    await remind.kicker().with_labels(delay=900, key="order-17").kiq(17)
    await broker.cancel("order-17")

The labels of a message say how its job is put; none is needed:

    label                 value                                         stock beanstalkd
    queue_name            the tube                                      yes
    priority              0 is the most urgent, as in the protocol      yes
    delay                 seconds, or as "15m"                          whole ones: others are rounded up
    at                    Unix time, or a datetime with a time zone     no
    key, replace, hold    docs/protocol-extensions.md, "put-with"       no
    tries, backoff, ttl   the same                                      no
    ttr                   seconds                                       yes

A worker's `listen` is one `Consumer`: at most `at_once` jobs are reserved, each is touched until its message is
acknowledged, and a connection that is lost costs no task. What no worker can run (no message of taskiq, a task that is
not registered) is buried: taskiq itself would acknowledge it.
Must never acknowledge what taskiq has not, nor know what a result is.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ImportError as _missing:
    raise ImportError(
        "a broker for taskiq needs taskiq: pip install './client[taskiq]' in a clone of beanstalk-server"
    ) from _missing

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.clients import LoopClients
from beanstalk_client.commands import DEFAULT_PRIORITY, DEFAULT_TTR, Duration, seconds_of
from beanstalk_client.consumer import DONE, GIVE_BACK, Bury, Consumer, Delivery, Outcome
from beanstalk_client.errors import ExistsError, NotFoundError, TooLateError
from beanstalk_client.events import tell

AT_ONCE = 100
"""Maximum number of reserved jobs of a worker process, by default: as many as taskiq runs by default."""

ATTRIBUTES = ("tries", "backoff", "ttl", "hold")
"""The labels with numbers that `put-with` takes under the same names."""

DURATIONS = ("backoff", "delay", "hold", "ttl", "ttr")
"""The labels that are durations."""

SENT_AGAIN = ("_retries", "X-Taskiq-requeue")
"""The labels of a message that taskiq sends again while the job of its first attempt lives."""

log: logging.Logger = logging.getLogger("beanstalk_client.taskiq")


class BeanstalkBroker(AsyncBroker):
    """A taskiq broker whose queue is a tube of a beanstalk server.

    Args:
        addresses: of the server, or of the nodes of a cluster, as `AsyncClient` takes them.
        tube: where messages go that have no label `queue_name`.
        tubes: the tubes that a worker takes messages from; `tube` alone, if there are none.
        at_once: how many jobs each worker process has reserved at most. It should be --max-async-tasks of `taskiq
            worker` plus --max-prefetch: with less, fewer tasks run than may; with more, jobs wait in this
            process that another one could run.
        ttr: time to run: seconds, "5m", or a timedelta. Jobs are touched while they are not acknowledged, so this is
            for how long a worker that hangs or vanishes without a word keeps them.
        priority: of messages without a label `priority`.
        client: further keywords of `AsyncClient`: tls, server_name, token, insecure_token, connect_timeout, timeout,
            reconnect_timeout.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        addresses: Any = "127.0.0.1:11300",
        *,
        tube: str = "taskiq",
        tubes: Sequence[str] = (),
        at_once: int = AT_ONCE,
        ttr: Duration = DEFAULT_TTR,
        priority: int = DEFAULT_PRIORITY,
        **client: Any,
    ) -> None:
        super().__init__()
        if isinstance(tubes, str):
            raise ValueError(f"tubes is {tubes!r}: must be a sequence of names")
        if at_once < 1:
            raise ValueError(f"at_once is {at_once}: must be 1 or more")
        self._addresses = addresses
        self._tube = tube
        self._tubes = tuple(tubes) or (tube,)
        self._at_once = at_once
        self._ttr = seconds_of(ttr, "ttr")
        self._priority = priority
        self._client = client
        self._producers: LoopClients[bytes] = LoopClients(self._connect)
        self._readers: set[_Reader] = set()
        self._reserved: set[int] = set()  # the ids of jobs that this process has reserved
        self._connect(tube)  # which complains about what is not valid

    def _connect(self, tube: str = "default") -> AsyncClient[bytes]:
        """A client that is not connected yet."""
        return AsyncClient(self._addresses, encoding=None, use=tube, **self._client)

    # For those who send

    async def kick(self, message: BrokerMessage) -> None:
        """Put a message as a job.

        Raises:
            ValueError: a label makes no sense.
            UnsupportedError: a label asks for what the server does not know. Nothing was put.
            ExistsError: another job has the key.
            Error: another error of the client.
        """
        shared = await self._producers.get()
        async with shared.using(str(message.labels.get("queue_name") or self._tube)) as client:
            await self._kick(client, message)

    async def _kick(self, client: AsyncClient[bytes], message: BrokerMessage) -> None:
        labels = message.labels
        priority = int(_number(labels, "priority", self._priority))
        ttr = _number(labels, "ttr", self._ttr)
        delay, at = _when(labels)
        key = str(labels.get("key") or "")
        if any(label in labels for label in SENT_AGAIN):
            key = ""  # which the first job of this message has, or had
        attributes = {name: _number(labels, name, 0) for name in ATTRIBUTES if name in labels}
        if not key:
            attributes.pop("hold", None)
        if at is None and not key and not attributes:
            await client.put(message.message, priority, delay, ttr)
            return
        if "tries" in attributes:
            attributes["tries"] = int(attributes["tries"])
        demands: dict[str, Any] = {**attributes, "at": at}
        try:
            replace = bool(key) and str(labels.get("replace", "")).lower() in ("true", "1")
            await client.put_with(message.message, priority, delay, ttr, key=key, replace=replace, **demands)
        except ExistsError as error:
            if error.id not in self._reserved:
                raise
            # A task of this process sends its own message again, as retries do: its job still has the key.
            demands.pop("hold", None)
            await client.put_with(message.message, priority, delay, ttr, **demands)

    async def cancel(self, key: str, queue_name: str | None = None) -> bool:
        """Cancel the message that was sent with this label `key` and waits for its time.

        Args:
            key: the label's value.
            queue_name: its tube, if that is not the broker's.

        Returns:
            True if it is cancelled: no worker will run it. False if it was too late: it is running, about to, done, or
            was never there.

        Raises:
            UnknownCommandError: the server cannot tell: it is stock beanstalkd.
        """
        try:
            async with (await self._producers.get()).using(queue_name or self._tube) as client:
                await client.cancel_keyed(key)
        except (TooLateError, NotFoundError):
            return False
        return True

    # For workers

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield the messages that come, each to be acknowledged when taskiq says so.

        Raises:
            UnauthorizedError, ForbiddenError: the server does not let us.
        """
        reader = _Reader(self)
        self._readers.add(reader)
        try:
            while True:
                yield await reader.next()
        finally:
            reader.close()

    async def shutdown(self) -> None:
        """Close the broker. Jobs that were not acknowledged are ready again."""
        try:
            await super().shutdown()
        finally:
            readers, self._readers = self._readers, set()
            for reader in readers:
                await reader.end()
            await self._producers.close()

    def _reason(self, body: bytes) -> str:
        """Why no worker can run this message, or ""."""
        try:
            name = self.formatter.loads(body).task_name
        except Exception as error:  # a formatter may raise any exception
            return f"not a taskiq message: {type(error).__name__}"
        return "" if self.find_task(name) else f"task {name!r} is not registered"


_Arrival = tuple[bytes, "asyncio.Future[Outcome]"]
"""The body of a message that has come, and its outcome once it is acknowledged or given back."""


class _Reader:
    """One `listen`: a consumer, and the messages that it has and taskiq has not asked for yet."""

    def __init__(self, broker: BeanstalkBroker) -> None:
        self._broker = broker
        self._arrived: asyncio.Queue[_Arrival | None] = asyncio.Queue()
        self._closed = False
        self._consumer = Consumer(broker._connect, broker._tubes, self._handle, at_once=broker._at_once)
        self._running = asyncio.get_running_loop().create_task(self._consumer.run())
        self._running.add_done_callback(lambda _: self._arrived.put_nowait(None))

    async def _handle(self, delivery: Delivery) -> Outcome:
        """Hand a job over, and say what became of it once it is acknowledged."""
        broker, job_id = self._broker, delivery.job_id
        reason = broker._reason(delivery.body)
        if reason:
            tell(log, logging.ERROR, "message-buried", f"job {job_id} is buried: {reason}", job=job_id)
            return Bury()
        if self._closed:
            return GIVE_BACK
        arrival: _Arrival = delivery.body, asyncio.get_running_loop().create_future()
        broker._reserved.add(job_id)
        self._arrived.put_nowait(arrival)
        try:
            return await arrival[1]
        finally:
            broker._reserved.discard(job_id)

    async def next(self) -> AckableMessage:
        """The next message, as soon as there is one."""
        arrival = await self._arrived.get()
        if arrival is None:
            self._running.result()  # raises what the consumer has raised
            raise asyncio.CancelledError
        return AckableMessage(data=arrival[0], ack=functools.partial(_acknowledge, arrival))

    def close(self) -> None:
        """Take no more, and give back what taskiq has not asked for. What it has, may still be acknowledged."""
        self._closed = True
        self._consumer.stop()
        while not self._arrived.empty():
            arrival = self._arrived.get_nowait()
            if arrival is not None:
                _settle(arrival, GIVE_BACK)
        self._running.add_done_callback(lambda _: self._broker._readers.discard(self))

    async def end(self) -> None:
        """Give back what is not acknowledged, too."""
        self.close()
        self._consumer.end()
        with contextlib.suppress(Exception):  # `next` has raised it
            await self._running


async def _acknowledge(arrival: _Arrival) -> None:
    _settle(arrival, DONE)


def _settle(arrival: _Arrival, outcome: Outcome) -> None:
    if not arrival[1].done():
        arrival[1].set_result(outcome)


def _number(labels: dict[str, Any], name: str, default: float) -> float:
    """The value of a label that is a number, or a duration in seconds; labels come as text."""
    value = labels.get(name)
    if value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = seconds_of(value, f"label {name}") if name in DURATIONS and isinstance(value, str) else math.nan
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"label {name} is {value!r}: must be a number, 0 or more")
    return number


def _when(labels: dict[str, Any]) -> tuple[float, float | None]:
    """A delay in seconds, and Unix time instead of it if the labels say so.

    With both, `at` counts until it is past: what is sent again has the labels of the first time, and the delay of its
    retry.
    """
    delay = _number(labels, "delay", 0)
    value = labels.get("at")
    if value is None:
        return delay, None
    try:
        at = float(value)
    except (TypeError, ValueError):
        try:
            moment = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(str(value))
        except ValueError:
            raise ValueError(f"label at is {value!r}: must be Unix time, or a datetime") from None
        if moment.tzinfo is None:
            raise ValueError(f"label at is {value!r}, which has no time zone") from None
        at = moment.timestamp()
    if "delay" in labels and at <= datetime.datetime.now(datetime.timezone.utc).timestamp():
        return delay, None
    return 0, at
