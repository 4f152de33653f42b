"""A client that is routed: its connection, and the places that it has at shards, here and at other nodes.

Each call into its router is made between two methods: `begin` and `go_on`, which sends what the router has answered and
does what follows. So nothing happens in the middle of anything. What a shard led here replies to an operation waits
until the router is at rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from beanstalk_server.access.rights import User
from beanstalk_server.events import event
from beanstalk_server.link.opening import Opening
from beanstalk_server.routing.branch import Branch, Place
from beanstalk_server.routing.local import LocalPlace
from beanstalk_server.routing.router import Router
from beanstalk_server.server.connection import (
    INPUT_LIMIT,
    OUTPUT_LIMIT,
    CarrierLostError,
    Connection,
    Connections,
    log_connected,
)
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import NONE, TOKEN, ListenerPolicy
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.intake import Intake

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts
    from beanstalk_server.routing.clients import Clients

log = logging.getLogger("beanstalk_server")


class RoutedConnection:
    """One client that is routed. It has the methods of an asyncio protocol.

    Args:
        listener_policy: where the client came in.
        user: who it has proved to be; None where no proof is asked for.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    router: Router
    transport: Any

    def __init__(
        self, clients: Clients, listener_policy: ListenerPolicy, user: User | None = None, name: str = ""
    ) -> None:
        self.clients = clients
        self.listener_policy = listener_policy
        self.name = name
        self.has_left = True  # if the client goes now, it has done so by itself
        self.idle_since = 0  # as in Connection
        self.is_due = False  # a turn has been promised
        self._proved = user  # who it was when it came
        self._ended = False  # the client has shut down its sending side
        self._hung_up = False  # the same, seen while it was not read from
        self._intake = Intake()
        self._is_at_work = False  # `go_on` is to follow
        self._output_paused = False

    # What the event loop calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        clients = self.clients
        listener_policy = self.listener_policy
        only = clients.only()
        if only is not None:  # only since the client was accepted
            connection = Connection(only, listener_policy, self._proved, self.name)
            transport.set_protocol(cast(Any, connection))
            connection.connection_made(transport)
            return
        is_refused = (
            clients.closing or listener_policy.closed or (self._proved is None and listener_policy.auth != NONE)
        )
        self.name = self.name or ("" if is_refused else name_of_peer(transport))
        self._make_router("default", ["default"])
        if is_refused:
            transport.abort()
            return
        transport.set_write_buffer_limits(OUTPUT_LIMIT)
        if clients.verbosity:
            log_connected(self.name, self.user)
        clients.open[self] = None
        self.begin()
        self.router.start()
        self.go_on()

    def data_received(self, data: bytes) -> None:
        self.idle_since = 0
        self._is_at_work = True
        self.router.receive(data)
        self.go_on()

    def eof_received(self) -> bool:
        self._ended = True
        self.begin()
        self.router.end_input()
        self.go_on()
        return True  # replies may still have to be sent; `go_on` closes

    def pause_writing(self) -> None:
        self._output_paused = True
        self.router.pause_output()

    def resume_writing(self) -> None:
        self._output_paused = False
        self.begin()
        self.router.resume_output()
        self.go_on()

    def connection_lost(self, error: Exception | None) -> None:
        clients = self.clients
        if isinstance(error, CarrierLostError):
            self.has_left = False
        if clients.verbosity:
            log.info("%(client)s disconnected", event("disconnected", client=self.name))
        self.let_go()
        if not self.listener_policy.carried:
            clients.listeners.connection_closed()

    def on_hangup(self) -> None:
        """Let the client wait for nothing: it has hung up while nothing was read from it."""
        self._hung_up = True
        self.begin()
        self.router.forbid_waiting()
        self.go_on()

    # What its router calls

    def open(self, branch: Branch, opening: Opening) -> Place | LocalPlace | None:
        """Open a place at a shard; None if it has no leader now."""
        if self.listener_policy.user is not None and opening.user is None:
            opening = opening._replace(user=self.listener_policy.user.name)
        return self.clients.open_place(self, branch, opening)

    def on_output(self) -> None:
        """Look soon at what the router has to say, unless it is being called just now."""
        if not (self._is_at_work or self.is_due):
            self.is_due = True
            self.clients.give_turn_soon(self)

    # What its owner and its places call

    @property
    def user(self) -> User | None:
        """The client's user; None for no user, who may do everything."""
        return self.router.user or self.listener_policy.user

    def begin(self) -> None:
        """Something is about to call into the router: `go_on` follows."""
        self._is_at_work = True

    def go_on(self) -> None:
        """Send what the router has answered, and do what follows from what it has been told."""
        self._end_work()
        turns = self.router.take_turns()
        if turns is not None:
            turns.run_pending()

    def _end_work(self) -> None:
        router = self.router
        router.deliver()
        self._is_at_work = False
        replies = router.take_replies()
        transport = self.transport
        if transport.is_closing():
            return
        if replies:
            transport.write(replies)
        if router.closed:
            if router.speaks_http:
                self.clients.listeners.refuse_http(self.listener_policy, self.name)
            if router.malformed_puts:
                self.clients.listeners.note_malformed_puts(router.malformed_puts, self.listener_policy, self.name)
            self.has_left = self.has_left and not router.failed
            if router.aborted:
                transport.abort()
            else:
                transport.close()
            router.close()
            return
        if router.has_more:
            self.on_output()
        if router.input_size > INPUT_LIMIT or not self._intake.reading:
            self._regulate()

    def take_turn(self) -> None:
        """Let the router do more of what has come, if its last turn was over before that; and `go_on`."""
        self.begin()
        if self.router.has_more:
            self.router.run()
        self.go_on()

    def take_over(self, connection: Connection) -> None:
        """Relay a client that a connection has served until now. `restart` must follow."""
        session = connection.session
        self.transport = transport = connection.transport
        self._ended = session.input_ended
        self._hung_up = not session.may_wait and not session.input_ended
        self._intake, connection.intake = connection.intake, Intake()
        self._output_paused = session.output_paused
        self._make_router(session.use.name, session.watch_entries(), session.reserve_mode())
        self.router.client_name = session.client_name
        self._intake.unwatch()
        if not (self._intake.reading or self._ended or self._hung_up):
            self._intake.watch(transport, self._hangups, self.on_hangup)
        transport.set_protocol(cast(Any, self))

    def restart(self, data: bytes) -> None:
        """Go on with a client that a connection has served, and what it has sent and not been answered."""
        router = self.router
        self.begin()
        router.start()
        if self._output_paused:
            router.pause_output()
        if data:
            router.receive(data)
        if self._ended:
            router.end_input()
        elif self._hung_up:
            router.forbid_waiting()
        self.go_on()

    def hand_over(self, connections: Connections) -> None:
        """Let the client be served by a connection of the only shard, which is led here from now on."""
        router = self.router
        transport = self.transport
        used, user, mode = router.used, router.user, router.mode
        entries = router.watch_entries(router.watched.names)
        data = router.take_all()
        connection = Connection(connections, self.listener_policy, user, self.name)
        connection.begin(transport)
        connection.session.restore(used, entries, mode, router.client_name)
        self.let_go()
        transport.set_protocol(cast(Any, connection))
        if not self._intake.reading and not self._ended:
            transport.resume_reading()
        if self._output_paused:
            connection.pause_writing()
        if data:
            connection.data_received(data)
        if transport.is_closing():
            return
        if self._ended:
            connection.eof_received()
        elif self._hung_up:
            connection.on_hangup()

    def judge(self, accounts: Accounts | None) -> bool:
        """Let the client be the user of its name from now on; disconnect it, and return False, if there is none."""
        router = self.router
        listener_policy = self.listener_policy
        if router.user is not None:
            user = None if accounts is None else accounts.by_name(router.user.name)
            if user is None:
                self.abort()
                router.close()  # at once, so that its places led here are not judged, too
                return False
            router.change_user(user)
        elif not listener_policy.closed:
            if listener_policy.auth != NONE:
                self.abort()
                return False
            if listener_policy.user is not None:
                router.judge_watched(listener_policy.user)
                router.tell_user(listener_policy.user)
        return True

    def abort(self) -> None:
        """Disconnect the client at once; replies that have not been sent are lost."""
        self.transport.abort()

    def is_idle(self) -> bool:
        return self.router.is_idle() and not self.transport.is_closing()

    def close_idle(self) -> None:
        self.transport.close()

    def cut_off(self) -> None:
        """Disconnect the client, which may find another node: it has not left by itself."""
        self.has_left = False
        self.abort()

    def _make_router(self, used: str, watched: list[str], mode: int = 0) -> None:
        clients = self.clients
        listener_policy = self.listener_policy
        self.router = Router(
            clients.places,
            self,
            clients.clock,
            self.name,
            clients.max_job_size,
            listener_policy.authenticate if listener_policy.auth == TOKEN else None,
            self._proved,
            used,
            watched,
            clients.dialect,
            listener_policy.closes_after_put,
        )
        self.router.mode = mode
        if self._proved is None and listener_policy.user is not None:
            self.router.judge_watched(listener_policy.user)

    def let_go(self) -> None:
        """Have nothing to do with the client any more."""
        self._intake.unwatch()
        self.router.close()
        self._is_at_work = False
        self.clients.remove(self)

    # Reading

    def _regulate(self) -> None:
        """Pause or resume reading, as what waits here demands."""
        if not self._ended:
            reading = self.router.input_size <= INPUT_LIMIT
            self._intake.regulate(reading, self.transport, self._hangups, self.on_hangup)

    @property
    def _hangups(self) -> HangupWatch | None:
        """What watches its socket; None if another process has it."""
        return None if self.listener_policy.carried else self.clients.hangups
