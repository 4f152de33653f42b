"""A transport of kombu, so that Celery runs over beanstalk-server, and over beanstalkd as far as that goes.

What kombu calls a queue is a tube, and a message is a job: JSON, as kombu's other virtual transports write it.

    published with an eta     put with this moment, and with the task's id as its key; received when it is due
    prefetched, or run        reserved, and touched (reservations.py)
    acknowledged              deleted
    rejected, to be requeued  released
    rejected for good         buried, or deleted if the transport's option `reject` says so
    expiration                the job's time to live, where the server knows put-with
    a binding that others     a tube that is watched, and never has a job: who publishes looks which there are, and when
    must know (to a fanout    the consumer's connection ends for any reason, the binding is gone
    exchange)

Importing this module makes kombu know the schemes beanstalk:// and beanstalks://.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
import selectors
import socket
import ssl
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from beanstalk_client import commands
from beanstalk_client.address import PLAIN, TLS
from beanstalk_client.blocking import Client
from beanstalk_client.connection import Connection, abandoned_in_forks
from beanstalk_client.errors import (
    ConnectionLostError,
    ExistsError,
    ForbiddenError,
    NotFoundError,
    NotIgnoredError,
    TooLateError,
    UnsupportedError,
)
from beanstalk_client.events import tell
from beanstalk_client.integrations.reservations import JobConnection, Reservation, Reservations
from beanstalk_client.session import RECONNECT_WITHIN
from beanstalk_client.version import VERSION

try:
    from kombu import transport as _transports
    from kombu.transport import virtual
    from kombu.transport.virtual.exchange import DirectExchange
    from kombu.utils.json import dumps, loads
except ImportError as _error:
    raise ImportError(
        "kombu is not installed: pip install './client[celery]' in a clone of beanstalk-server"
    ) from _error

if TYPE_CHECKING:
    from celery import Celery

log: logging.Logger = logging.getLogger(__name__)

URGENCY: Final = 1024
"""The distance of two of kombu's priorities in beanstalk's: only those of 9 are urgent, which means below 1024."""

WAIT: Final = 30.0
"""Seconds for which the server is asked to wait for a job while an event loop runs."""

BLOCKED_WAIT: Final = 5.0
"""The same where no code runs between two calls of drain_events."""

PAUSE: Final = 0.05
"""Seconds between two looks where nothing announces what is looked for: room that another thread makes for messages, or
a job within less than a second from beanstalkd.
"""

UNLIMITED: Final = 10
"""How many messages are reserved at once where no prefetch count limits them."""

KEY: Final = re.compile(r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,190}")
"""What of tasks' ids can be a key, with room for RETRY."""

RETRY: Final = "/retry"
"""What is behind the id in the key of every second retry: a retry is published while the try before is reserved."""

TUBE_CHARACTERS: Final = re.compile(r"[^-A-Za-z0-9+/;._()]|^-")
"""What in the name of a queue cannot be in the name of a tube, or not at its beginning; and $, which stands for it."""

ESCAPED: Final = re.compile(r"\$([0-9A-F]{2})")


BOUND: Final = "/fanout/"
"""Between the names of a fanout exchange and of a queue in the name of the tube that says that they are bound."""

BROADCAST_LIFE: Final = 60.0
"""Seconds after which a broadcast is of no use any more, nor the reply to it."""


class Direct(DirectExchange):  # type: ignore[misc]
    """A direct exchange, through which the replies to a broadcast come back as well."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        super().deliver(message, exchange, routing_key, **kwargs)
        queue = reply_queue(exchange, routing_key)  # it is bound in another process, if it is this
        if not self.channel._lookup(exchange, routing_key) and self.channel.is_awaited(queue):
            self.channel._put(queue, message, life=BROADCAST_LIFE)


class QoS(virtual.QoS):  # type: ignore[misc]
    """Which messages of a channel are not acknowledged yet, and how many may be."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        # Not kombu's: that restores messages when the process ends, and ours are when the connection does.
        self.channel = channel
        self.prefetch_count: int = prefetch_count or 0
        self._delivered: dict[str, Reservation] = {}
        self._dirty: frozenset[str] = frozenset()  # of kombu's, as what is acknowledged is removed at once

    def room(self) -> int:
        """How many more messages may be reserved."""
        taken = self.channel.reservations.outstanding
        if not self.prefetch_count:
            return UNLIMITED - taken
        return int(self.prefetch_count) - len(self._delivered) - taken

    def append(self, message: Any, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def ack(self, delivery_tag: str) -> None:
        held = self._delivered.pop(delivery_tag, None)
        if held is not None:
            self.channel.reservations.delete(held)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        held = self._delivered.pop(delivery_tag, None)
        if held is None:
            return
        if requeue:
            self.channel.reservations.release(held)
        elif self.channel.reject == "delete":
            self.channel.reservations.delete(held)
        else:
            self.channel.reservations.bury(held)

    def restore_unacked(self) -> list[Any]:
        for held in self._delivered.values():
            self.channel.reservations.give_back(held)
        self._delivered.clear()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Called when the channel is closed, and with it the connections that hold the jobs: the server does it."""
        self._delivered.clear()


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel: the consumers of a connection that share a prefetch count."""

    QoS = QoS

    supports_fanout = True
    exchange_types: dict[str, Any] = virtual.Channel.exchange_types | {"direct": Direct}

    ttr: float = commands.DEFAULT_TTR
    """The time-to-run of jobs, in seconds: how long after a worker's machine is gone another one gets them."""

    queue_name_prefix: str = ""
    """Stands before the names of all queues in the names of their tubes."""

    connections: int = 10
    """How many connections may hold messages that are not acknowledged yet."""

    reject: str = "bury"
    """How to end messages that are rejected and not requeued: "bury" or "delete"."""

    from_transport_options: tuple[str, ...] = (
        *virtual.Channel.from_transport_options,
        "ttr",
        "queue_name_prefix",
        "connections",
        "reject",
    )

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        if self.reject not in ("bury", "delete"):
            raise ValueError(f"transport option reject is {self.reject!r}: must be 'bury' or 'delete'")
        self._handlers: dict[str, tuple[Any, bool]] = {}
        self._tags = 0
        self._reservations: Reservations | None = None

    @property
    def reservations(self) -> Reservations:
        """What this channel has reserved. It connects when it has to."""
        if self._reservations is None:
            self._reservations = self.connection.make_reservations(self.connections)
        return self._reservations

    @property
    def is_consuming(self) -> bool:
        return bool(self._consumers)

    def tube(self, queue: str) -> str:
        """The tube of a queue: what cannot be in its name is $ and two hexadecimal digits for each byte."""
        return TUBE_CHARACTERS.sub(_escape, self.queue_name_prefix + queue)

    def queue(self, tube: str) -> str:
        """The queue that has this tube."""
        raw = ESCAPED.sub(lambda found: chr(int(found[1], 16)), tube)
        return raw.encode("latin-1").decode("utf-8", "replace").removeprefix(self.queue_name_prefix)

    # Messages out

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Text stays as it is, so that an operator can read it."""
        return (body, "utf-8") if isinstance(body, str) else super().encode_body(body, encoding)

    def _put(self, queue: str, message: dict[str, Any], life: float | None = None, **kwargs: Any) -> None:
        client = self.connection.use(self.tube(queue))
        body = dumps(message).encode("utf-8")
        priority = URGENCY * self._get_message_priority(message, reverse=True)
        headers = message.get("headers") or {}
        due = moment(headers.get("eta"))
        life = _life(message) or life
        if due is not None and due <= time.time():
            due = None
        if due is None and life is None:
            client.put(body, priority, 0, self.ttr)
        elif not client.knows("put-with"):
            client.put(body, priority, 0 if due is None else max(0.0, due - time.time()), self.ttr)
        else:
            key = "" if due is None else key_of(headers)
            try:
                client.put_with(body, priority, 0, self.ttr, key=key or None, at=due, ttl=life)
            except ExistsError:
                if not self._is_there(client, key, message):
                    client.put_with(body, priority, 0, self.ttr, at=due, ttl=life)

    def _is_there(self, client: Client[bytes], key: str, message: dict[str, Any]) -> bool:
        """Whether the job that has the key is this very message: it is published again because no reply came."""
        try:
            found = loads(client.peek_keyed(key).body.decode("utf-8"))
            return all(found[name] == message[name] for name in ("body", "headers", "content-type"))
        except (NotFoundError, ValueError, LookupError, TypeError):
            return False

    def cancel_task(self, task_id: str, queues: Iterable[str]) -> bool:
        """Delete a task that is not due yet.

        Raises:
            UnsupportedError: the server does not know cancel-keyed.
        """
        if not KEY.fullmatch(task_id):
            return False
        for queue in queues:
            client = self.connection.use(self.tube(queue))
            if not client.knows("cancel-keyed"):
                raise UnsupportedError("the server does not support cancel-keyed; beanstalk-server does")
            for key in (task_id, task_id + RETRY):
                with contextlib.suppress(NotFoundError, TooLateError):
                    client.cancel_keyed(key)
                    return True
        return False

    # Broadcasts

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Let those who publish elsewhere know of a queue that is bound here."""
        if self.typeof(exchange).type == "fanout":
            with contextlib.suppress(ForbiddenError):
                self._purge(queue)  # what was said to a consumer of this name that is dead
            self.connection.bind(self.tube(exchange + BOUND + queue))
        elif queue == reply_queue(exchange, routing_key):
            self.connection.bind(self.tube(queue))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        client, prefix = self.connection.commands, self.tube(exchange + BOUND)
        if self.connection.is_exact:
            tubes = [str(entry["name"]) for entry in client.stats_tubes(prefix=prefix)]
        else:
            tubes = [tube for tube in client.tubes() if tube.startswith(prefix)]
        for tube in tubes:
            self._put(self.queue(tube).removeprefix(exchange + BOUND), message, life=BROADCAST_LIFE)

    def is_awaited(self, queue: str) -> bool:
        """Whether any connection watches the tube of a queue."""
        try:
            return int(self.connection.commands.stats_tube(self.tube(queue))["current-watching"]) > 0
        except NotFoundError:
            return False

    def _delete(self, queue: str, exchange: str, *meta: Any, **kwargs: Any) -> None:
        self._purge(queue)
        for tube in (self.tube(exchange + BOUND + queue), self.tube(queue)):
            self.connection.forget(tube)

    # Queues

    def _size(self, queue: str) -> int:
        try:
            return int(self.connection.commands.stats_tube(self.tube(queue))["current-jobs-ready"])
        except NotFoundError:
            return 0

    def _purge(self, queue: str) -> int:
        client = self.connection.use(tube := self.tube(queue))
        if client.knows("clear-tube"):
            with contextlib.suppress(ForbiddenError):  # it is an administrator's; the rest is a worker's
                try:
                    return int(client.clear_tube(tube))
                except NotFoundError:
                    return 0
        purged = 0
        for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
            with contextlib.suppress(NotFoundError):
                while True:
                    job = peek()
                    with contextlib.suppress(NotFoundError):  # another client was faster
                        client.delete(job)
                        purged += 1
        return purged

    # Messages in

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._handlers[queue] = callback, no_ack
        self._watch()

    def basic_cancel(self, consumer_tag: str) -> None:
        if consumer_tag in self._consumers:
            self._consumers.remove(consumer_tag)
            queue = self._tag_to_queue.pop(consumer_tag)
            self._active_queues.remove(queue)
            if queue not in self._active_queues:
                del self._handlers[queue]
            self._watch()

    def _watch(self) -> None:
        if self._reservations is not None or self._active_queues:
            self.reservations.watch([self.tube(queue) for queue in self._active_queues])

    def ask(self, wait: float) -> None:
        """Reserve as many messages as there is room for, once there are any."""
        if self._active_queues:
            self.reservations.ask(self.qos.room(), wait)

    def deliver(self) -> int:
        """Hand over what has been reserved, as far as the prefetch count allows; return how many messages."""
        delivered = 0
        reservations = self.reservations
        while self.qos.can_consume() and (held := reservations.take()) is not None:
            delivered += self._deliver(held)
            if self.closed:
                break
        return delivered

    def _deliver(self, held: Reservation) -> bool:
        handler = self._handlers.get(self.queue(held.tube))
        if handler is None:
            self.reservations.give_back(held)
            return False
        callback, no_ack = handler
        message = self._read(held, no_ack)
        if message is None:
            return False
        callback(message)
        return True

    def _read(self, held: Reservation, no_ack: bool) -> virtual.Message | None:
        """The message that a job is, to be acknowledged unless `no_ack`. A job that is no message is buried."""
        try:
            payload: dict[str, Any] = loads(held.body.decode("utf-8"))
            properties = payload["properties"]
            information = properties["delivery_info"]
            payload["body"]
            information["redelivered"] = held.reserves > 1
            self._tags += 1
            properties["delivery_tag"] = f"{held.id}.{self._tags}"
            headers = payload.get("headers")
            if isinstance(headers, dict):
                due = moment(headers.get("eta"))
                if due is not None and due <= time.time():  # or Celery would hold it once more, with its timers
                    headers["due"], headers["eta"] = headers["eta"], None
            message = self.Message(payload, channel=self)
        except Exception as error:  # anything: kombu's decoders do what the body says
            message = f"job {held.id} of tube {held.tube} was buried: it is not a kombu message: {error!r}"
            tell(log, logging.ERROR, "message-buried", message, job=held.id, tube=held.tube)
            self.reservations.bury(held)
            return None
        if no_ack:
            self.reservations.delete(held)
        else:
            self.qos.append(held, message.delivery_tag)
        return message

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        while (held := self.reservations.get(self.tube(queue), self.connection.patience)) is not None:
            message = self._read(held, no_ack)
            if message is not None:
                return message
        return None

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._check_open()
        self.qos.ack(delivery_tag)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._check_open()
        self.qos.reject(delivery_tag, requeue=requeue)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLostError("the channel is closed, and its messages are requeued")

    def close(self) -> None:
        """Hang up. What is not acknowledged is requeued."""
        if not self.closed and self._reservations is not None:
            self._reservations.close()
        super().close()


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection of kombu: one connection for what is published, and those of its channels."""

    Channel = Channel

    can_parse_url = True
    default_port = 11300
    driver_type = "beanstalk"
    driver_name = "beanstalk_client"
    polling_interval = None
    tls = False

    connection_errors: tuple[type[Exception], ...] = (OSError, EOFError, ConnectionLostError)

    implements: Any = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self.patience: float = float(options.get("timeout", 60.0))
        self._options = {
            "tls": _context(client.ssl) or options.get("tls", False),
            "server_name": options.get("server_name"),
            "token": options.get("token", ""),
            "insecure_token": options.get("insecure_token", False),
            "connect_timeout": client.connect_timeout or 10.0,
            "timeout": self.patience,
            "reconnect_timeout": options.get("reconnect_timeout", RECONNECT_WITHIN),
        }
        self._commands: Client[bytes] | None = None
        self._is_bound = False
        self._said_at = time.monotonic()
        self._hub: Any = None
        _transports_made.add(self)

    def driver_version(self) -> str:
        return VERSION

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": "127.0.0.1"}

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        scheme, found, rest = uri.rpartition("://")
        _, at, hosts = rest.rpartition("@")
        return uri if include_password or not at else f"{scheme}{found}:{mask}@{hosts}"

    # The connection

    def addresses(self) -> str:
        """Where the server is, as the client reads it."""
        client = self.client
        host = client.hostname or "127.0.0.1"
        if "://" in host:
            scheme, _, rest = host.partition("://")
            return f"{scheme}://{rest.rstrip('/') or '127.0.0.1'}"
        user = f":{client.password}@" if client.password else ""
        port = f":{client.port}" if client.port else ""
        return f"{TLS if self.tls else PLAIN}{user}{f'[{host}]' if ':' in host else host}{port}"

    @property
    def commands(self) -> Client[bytes]:
        """The connection for everything but reserving."""
        if self._commands is None:
            self._commands = Client(self.addresses(), encoding=None, **self._options)
        return self._commands

    @property
    def is_exact(self) -> bool:
        """Whether the server is a beanstalk-server, and knows reserve-batch, stats-tubes and fractions of seconds.

        To ask for these themselves takes `stats`, which users may have no right to.
        """
        return self.commands.knows("put-with")

    def use(self, tube: str) -> Client[bytes]:
        """The same, when it uses this tube."""
        client = self.commands
        if client._session.used != tube:
            client.use(tube)
        return client

    def bind(self, tube: str) -> None:
        """Let others believe that something is bound here."""
        self.commands.watch(tube)
        self._is_bound = True

    def stay_bound(self) -> None:
        """Say something now and then: a connection that is lost is noticed by that, and another one watches the same.

        Nothing else may be said on it for days, and what is lost or cut for its silence binds nothing.
        """
        if self._is_bound and time.monotonic() - self._said_at > WAIT:
            self._said_at = time.monotonic()
            self.commands.using()

    def forget(self, tube: str) -> None:
        """Withdraw what says that something is bound here."""
        with contextlib.suppress(NotIgnoredError):  # it is the last one, which was never watched for this
            self.commands.ignore(tube)

    def make_reservations(self, most: int) -> Reservations:
        reservations = Reservations(self._connect, batches=self.is_exact, most=most, patience=self.patience)
        reservations.forget = self._unwatch
        return reservations

    def _connect(self) -> Connection:
        """Make another connection to the first address that lets us."""
        self._said_at = -WAIT  # if it replaces one that is lost, the one that binds may be lost as well
        return Client(self.addresses(), encoding=None, **self._options)._detach()

    def establish_connection(self) -> Transport:
        self.commands  # noqa: B018 raises if it cannot connect
        return self

    def close_connection(self, connection: Transport) -> None:
        try:
            super().close_connection(connection)
        finally:
            if self._hub is not None:
                self._hub.on_tick.discard(self._on_tick)
                self._hub = None
            if self._commands is not None:
                self._commands.close()
                self._commands = None
                self._is_bound = False

    def _abandon(self) -> None:
        """In a process that was forked: the connection is the parent's."""
        self._commands = None
        self._is_bound = False
        self._hub = None

    # Without an event loop

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Hand over what has come, or the next that comes.

        Raises:
            socket.timeout: nothing has come in `timeout` seconds. Then the server has not been left waiting either, so
                that no job is reserved and not read.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        has_asked = False
        while True:
            self.stay_bound()
            channels = [channel for channel in self.channels if channel.is_consuming]
            if sum([channel.deliver() for channel in channels]):
                return
            left = BLOCKED_WAIT if deadline is None else deadline - time.monotonic()
            wait = max(0.0, min(left, BLOCKED_WAIT))
            if left > 0 or not has_asked:
                for channel in channels:
                    if not channel.reservations.outstanding:
                        channel.ask(wait)
                has_asked = True
            else:
                for channel in channels:
                    channel.reservations.stop_waiting()
                if not any(channel.reservations.is_asking for channel in channels):
                    raise socket.timeout("no message within the timeout")
            is_asking = any(channel.reservations.is_asking for channel in channels)
            slots = [slot for channel in channels for slot in channel.reservations.slots]
            _await_replies(slots, wait + self.patience if is_asking else min(wait, PAUSE))
            for channel in channels:
                channel.reservations.receive_all()
            if wait < 1 and not self.is_exact:
                time.sleep(min(wait, PAUSE))

    # With an event loop

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        self._hub = loop
        loop.on_tick.add(self._on_tick)

    def _on_tick(self) -> None:
        """Before each look at the sockets: ask for what fits, and have the sockets watched."""
        hub = self._hub
        if hub is None:
            return
        self.stay_bound()
        for channel in list(self.channels):
            if channel.is_consuming:
                channel.deliver()
                channel.ask(WAIT)
            if channel._reservations is not None:
                for slot in channel._reservations.slots:
                    if slot.fileno() not in hub.readers:
                        hub.add_reader(slot.fileno(), self._on_readable, channel, slot)

    def _on_readable(self, channel: Any, slot: JobConnection) -> None:
        if channel.closed:
            return
        channel.reservations.receive(slot)
        if channel.is_consuming:
            channel.deliver()

    def _unwatch(self, slot: JobConnection) -> None:
        if self._hub is not None and slot.fileno() in self._hub.readers:
            self._hub.remove_reader(slot.fileno())


class TLSTransport(Transport):
    """The same with TLS: what beanstalks:// stands for."""

    tls = True


def cancel(app: Celery, task_id: str, queue: str | None = None) -> bool:
    """Delete a task that was published with an eta or a countdown, before it is due.

    Args:
        queue: where it was sent; by default, it is looked for in all queues that the app knows.

    Returns:
        True: no worker gets it. Its result is "revoked" then, in the backend. False: it is too late, or there is
        no such task.

    Raises:
        UnsupportedError: the server is not beanstalk-server.
        kombu.exceptions.OperationalError: it cannot be reached.
    """
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1)
        channel = connection.default_channel
        cancelled: bool = channel.cancel_task(task_id, [queue] if queue else list(app.amqp.queues))
    if cancelled:
        app.backend.mark_as_revoked(task_id, "cancelled")
    return cancelled


def moment(eta: Any) -> float | None:
    """The Unix time of an eta, up to a millisecond later, so that nothing is early; None if it is none."""
    if isinstance(eta, str):
        try:
            eta = datetime.datetime.fromisoformat(eta[:-1] + "+00:00" if eta.endswith("Z") else eta)
        except ValueError:
            return None  # which Celery tells its user
    if not isinstance(eta, datetime.datetime):
        return None
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=datetime.timezone.utc)
    milliseconds: int = -((EPOCH - eta) // datetime.timedelta(milliseconds=1))
    return milliseconds / 1000


EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def key_of(headers: dict[str, Any]) -> str:
    """The key of a task; "" if its id cannot be one."""
    task_id = headers.get("id")
    if not isinstance(task_id, str) or not KEY.fullmatch(task_id):
        return ""
    retries = headers.get("retries")
    return task_id + RETRY if isinstance(retries, int) and retries % 2 else task_id


def reply_queue(exchange: str, routing_key: str) -> str:
    """What kombu.pidbox calls the queue in which it collects replies."""
    return f"{routing_key}.{exchange}"


def _life(message: dict[str, Any]) -> float | None:
    """How many seconds a message may wait to be received."""
    try:
        return max(1, int(message["properties"]["expiration"])) / 1000
    except (KeyError, TypeError, ValueError):
        return None


def _context(given: Any) -> ssl.SSLContext | bool:
    """What kombu's `ssl` (Celery's broker_use_ssl) stands for: a context, True, or pyamqp's dictionary."""
    if not isinstance(given, dict):
        return given if isinstance(given, ssl.SSLContext) else bool(given)
    context = ssl.create_default_context(cafile=given.get("ca_certs"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.get("certfile"):
        context.load_cert_chain(given["certfile"], given.get("keyfile"))
    if given.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _await_replies(slots: list[JobConnection], timeout: float) -> None:
    if not slots:
        time.sleep(timeout)
        return
    with selectors.DefaultSelector() as selector:
        for slot in slots:
            selector.register(slot, selectors.EVENT_READ)
        selector.select(timeout)


def _escape(found: re.Match[str]) -> str:
    return "".join(f"${byte:02X}" for byte in found[0].encode("utf-8"))


def register() -> None:
    """Make kombu know beanstalk:// and beanstalks://."""
    _transports.TRANSPORT_ALIASES["beanstalk"] = f"{__name__}:Transport"
    _transports.TRANSPORT_ALIASES["beanstalks"] = f"{__name__}:TLSTransport"


_transports_made: weakref.WeakSet[Transport] = abandoned_in_forks()

register()
