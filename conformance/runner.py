"""Runs a conversation against a server, and reports what came instead of what was expected.

A client acts only when the server has done everything that other clients sent before. No test sleeps for that: an
observer, one more connection, sends a command that no server knows. A server that handles events in their order has
done everything before it once it has answered twice. So "is silent" does not wait, either. Every client begins with the
same command, so that the server has accepted its connection before its first line.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from .address import Address, connect
from .conversation import CLIENT, Conversation, Step
from .servers import PAUSE, Server, UnusableError
from .text import TextError, shown

PATIENCE: Final = 2.0
"""Seconds until an answer must have come, unless the conversation names a time."""

TIMEOUT: Final = 20.0
"""Seconds until the server must have answered the observer, or taken everything that is sent."""

LATE: Final = 0.15
"""Seconds that a conversation may take besides its waits. If it takes longer and fails, it is run again."""

MOST: Final = 1 << 27
"""The bytes of one client that are kept: more than any conversation expects."""

SHOWN_RECEIVED: Final = 4000
"""The bytes that are shown at most of what came instead of what was expected: enough for the answer to `stats`."""

PING: Final = b"ping\r\n"
PONG: Final = b"UNKNOWN_COMMAND\r\n"


class MismatchError(Exception):
    """Something else came than expected; the message says what."""


class UnresponsiveError(MismatchError):
    """The server does not answer the simplest command: it hangs, has died, or is not a beanstalk server."""


class UncleanError(MismatchError):
    """Jobs are left that cannot be deleted."""


class OverdueError(Exception):
    """No whole line came in time."""


class HangUpError(Exception):
    """The server has closed the connection."""


@dataclass
class Outcome:
    """How a conversation went: `status` is "passed", "failed" or "skipped"; `reason` says why it was skipped, or what
    the server has suffered besides.
    """

    conversation: Conversation
    status: str
    reason: str = ""
    transcript: list[str] = field(default_factory=list)
    seconds: float = 0.0
    tries: int = 1

    def fail(self, expected: str, came: str) -> None:
        self.status = "failed"
        self.transcript += [f"expected  {expected}", f"received  {came}"]

    @property
    def was_too_slow(self) -> bool:
        """Whether it failed on a machine that was too slow for its timing to mean anything."""
        return self.status == "failed" and self.seconds - self.conversation.waits > LATE


class Peer:
    """A client's end of a connection that the server has accepted."""

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        self.socket.settimeout(TIMEOUT)
        self.arrived = bytearray()
        self.hung_up = False
        try:
            self.ping()
        except MismatchError:
            self.close()
            raise

    def ping(self) -> None:
        """Send a command that no server knows or counts; return when it is answered.

        Raises:
            UnresponsiveError: it is not answered so.
        """
        try:
            self.send(PING)
            reply = self.line(time.monotonic() + TIMEOUT)
        except OverdueError:
            raise UnresponsiveError(f"no reply to {_quoted(PING)} within {TIMEOUT:g} s") from None
        except (HangUpError, OSError):
            raise UnresponsiveError(f"no reply to {_quoted(PING)}: the server closed the connection") from None
        if reply != PONG:
            raise UnresponsiveError(f"{_quoted(reply)} as the reply to {_quoted(PING)}")

    def send(self, data: bytes) -> None:
        """Send all data, and receive meanwhile: a server may stop reading until its replies are read."""
        left = memoryview(data)
        deadline = time.monotonic() + TIMEOUT
        while left:
            readable, writable, _ = select.select(
                [self.socket], [self.socket], [], max(0.0, deadline - time.monotonic())
            )
            if not readable and not writable:
                raise MismatchError(f"the server does not read: {len(left)} of {len(data)} bytes are unsent")
            if readable and not self.hung_up:
                self.receive()
            if writable:
                left = left[self.socket.send(left[: 1 << 16]) :]

    def receive(self) -> None:
        """Receive what has arrived, or wait for it.

        Raises:
            MismatchError: it is more than MOST, or nothing comes for TIMEOUT.
        """
        try:
            piece = self.socket.recv(1 << 20)
        except ConnectionResetError:
            piece = b""
        except TimeoutError:
            raise MismatchError(f"nothing more within {TIMEOUT:g} s") from None
        self.arrived += piece
        if len(self.arrived) > MOST:
            raise MismatchError(f"more than {MOST:,} bytes, beginning with {_quoted(self.arrived[:100])}")
        self.hung_up = self.hung_up or not piece

    def arrives_by(self, deadline: float) -> bool:
        """Receive what arrives; return False if nothing does by the deadline."""
        readable, _, _ = select.select([self.socket], [], [], max(0.0, deadline - time.monotonic()))
        if readable:
            self.receive()
        return bool(readable)

    def line(self, deadline: float) -> bytes:
        """Receive up to and including the next LF.

        Raises:
            OverdueError: it does not come by the deadline.
            HangUpError: the server has closed the connection before it.
        """
        while (end := self.arrived.find(b"\n")) < 0:
            if self.hung_up:
                raise HangUpError
            if not self.arrives_by(deadline):
                raise OverdueError
        line = bytes(self.arrived[: end + 1])
        del self.arrived[: end + 1]
        return line

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset, so that the server learns at once that its replies are not read."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Observer(Peer):
    """A connection that shows when the server has done everything before."""

    def settle(self, *peers: Peer, quiet: int = 3) -> None:
        """Wait until the server has taken everything, and nothing more comes to any of the peers.

        Args:
            quiet: during how many pings nothing must come. Two, and one more for an answer that is written in a later
                event.
        """
        silent = 0
        deadline = time.monotonic() + TIMEOUT
        while silent < quiet:
            if time.monotonic() > deadline:
                raise MismatchError(f"data still arriving after {TIMEOUT:g} s")
            self.ping()
            silent += 1
            for peer in peers:
                if not peer.hung_up and peer.arrives_by(0):
                    silent = 0


class Talk:
    """A conversation in progress."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.peers: dict[str, Peer] = {}
        self.kept: dict[str, int] = {}
        self.outgoing: list[tuple[str, bytes]] = []
        self.unsettled: set[str] = set()
        self.skipping: set[str] = set()
        self.sizes: dict[str, tuple[int, int]] = {}
        self.patience = PATIENCE
        self.observer: Observer | None = None

    def close(self) -> None:
        peers = [*self.peers.values(), *([self.observer] if self.observer else [])]
        with self.server.closing(sum(not peer.hung_up for peer in peers)):
            for peer in peers:
                peer.close()

    def do(self, step: Step) -> str:
        """Do one step; return it for the transcript: with the bytes that were sent or that came.

        Raises:
            MismatchError: something else came than what was expected.
        """
        if step.action == ">":
            return _said(step, self._collect(step))
        self.flush()
        match step.action:
            case "<" | "|" if not step.text.any_lines:
                return _said(step, self._expect(step))
            case "<" | "|":
                self.skipping.add(step.client)
            case "wait":
                self.patience = PATIENCE
                time.sleep(step.seconds)
            case "within":
                self.patience = step.seconds
            case "split":
                self._settle()
            case "signal":
                self.server.drain()
                self._settle()
            case "restart":
                self._restart()
            case "is silent":
                self._settle()
                peer = self._peer(step.client)
                if peer.arrived:
                    raise MismatchError(_quoted(peer.arrived))
                if peer.hung_up:
                    raise MismatchError("the end of the connection")
            case "is closed":
                self._expect_end(step)
            case "connects":
                self._settle_others(step.client)
                self._peer(step.client)
            case _:
                self._leave(step)
        return step.source

    def end(self) -> None:
        """Check at the end that everything that came was expected."""
        for name, peer in self.peers.items():
            peer.arrives_by(0)
            if peer.arrived:
                raise MismatchError(f"{name}: {_quoted(peer.arrived)}")

    def _restart(self) -> None:
        """Restart the server: when it has done everything, and with new connections."""
        self._settle()
        self.close()
        self.peers.clear()
        self.unsettled.clear()
        self.observer = None
        self.server.restart()

    def _collect(self, step: Step) -> bytes:
        """Collect successive lines of one client, which are sent in one piece."""
        if self.outgoing and self.outgoing[-1][0] != step.client:
            self.flush()
        data = step.text.render(self.kept) + (b"\r\n" if step.ends else b"")
        self.outgoing.append((step.client, data))
        return data

    def flush(self) -> None:
        if not self.outgoing:
            return
        client = self.outgoing[0][0]
        data = b"".join(piece for _, piece in self.outgoing)
        self.outgoing.clear()
        self._settle_others(client)
        self.patience = PATIENCE
        self._peer(client).send(data)
        self.unsettled.add(client)

    def _peer(self, client: str) -> Peer:
        if client not in self.peers:
            self.peers[client] = Peer(self.server.address)
            self.unsettled.add(client)
        return self.peers[client]

    def _settle_others(self, client: str) -> None:
        if self.unsettled - {client}:
            self._settle()

    def _settle(self) -> None:
        if self.observer is None:
            self.observer = Observer(self.server.address)
        self.observer.settle(*self.peers.values())
        self.unsettled.clear()

    def _leave(self, step: Step) -> None:
        self._settle_others(step.client)
        peer = self._peer(step.client)
        match step.action:
            case "disconnects" | "resets":
                with contextlib.nullcontext() if peer.hung_up else self.server.closing():
                    peer.close() if step.action == "disconnects" else peer.reset()
                del self.peers[step.client]
            case "shuts down":
                peer.socket.shutdown(socket.SHUT_WR)
        self.unsettled.add(step.client)

    def _expect_end(self, step: Step) -> None:
        peer = self._peer(step.client)
        deadline = time.monotonic() + self.patience
        while not peer.hung_up:
            if peer.arrived:
                break
            if not peer.arrives_by(deadline):
                raise MismatchError("the connection is open")
        if peer.arrived:
            raise MismatchError(_quoted(peer.arrived))
        self.unsettled.discard(step.client)

    def _expect(self, step: Step) -> bytes:
        """Compare what comes with the step's text; return it."""
        client = step.client
        came = self._read(step)
        skipped = b""
        while (found := self._matches(step, came)) is None:
            if client not in self.skipping or came == b"\r\n":
                raise MismatchError(_quoted(skipped + came))
            skipped += came
            self._count(client, came)
            came = self._read(step)
        self.skipping.discard(client)
        size = found.pop("size", None)
        self.kept.update(found)
        if step.action == "|":
            self._count(client, came)
        elif client in self.sizes:
            said, counted = self.sizes.pop(client)
            if said != counted:
                raise MismatchError(f"{counted} bytes, where {said} were announced")
        if size is not None:
            self.sizes[client] = (size, 0)
        self.unsettled.discard(client)
        return came

    def _matches(self, step: Step, came: bytes) -> dict[str, int] | None:
        end = b"" if not step.ends else b"\n" if step.action == "|" else b"\r\n"
        if not came.endswith(end):
            return None
        return step.text.match(came[: len(came) - len(end)], self.kept, self.server.answers_to("since 1.13"))

    def _count(self, client: str, came: bytes) -> None:
        if client in self.sizes:
            said, counted = self.sizes[client]
            self.sizes[client] = (said, counted + len(came))

    def _read(self, step: Step) -> bytes:
        """As many lines as the step's text has."""
        peer = self._peer(step.client)
        deadline = time.monotonic() + self.patience
        came = b""
        try:
            for _ in range(step.text.newlines + (1 if step.ends else 0)):
                came += peer.line(deadline)
        except OverdueError:
            rest = came + peer.arrived
            within = f"within {self.patience:g} s"
            raise MismatchError(f"{_quoted(rest)} and no more {within}" if rest else f"nothing {within}") from None
        except HangUpError:
            rest = came + peer.arrived
            raise MismatchError((f"{_quoted(rest)} and " if rest else "") + "the end of the connection") from None
        return came


def _quoted(data: bytes | bytearray) -> str:
    return f'"{shown(bytes(data), SHOWN_RECEIVED)}"'


def _said(step: Step, data: bytes) -> str:
    """A line of a transcript: what a client has sent, or what has come to it."""
    client = "" if step.client == CLIENT else step.client
    end = b"\n" if step.action == "|" else b"\r\n"
    text = shown(data.removesuffix(end)) if data.endswith(end) else f"{shown(data)}\\c"
    return f"{client}{step.action} {text}"


def hold(conversation: Conversation, server: Server) -> Outcome:
    """Run a conversation once."""
    if reason := server.reason_against(conversation):
        return Outcome(conversation, "skipped", reason)
    talk = Talk(server)
    outcome = Outcome(conversation, "passed")
    began = time.monotonic()
    expected = ""
    try:
        for step in conversation.steps:
            if server.answers_to(step.guard):
                expected = step.source
                outcome.transcript.append(talk.do(step))
        expected = "nothing more"
        talk.flush()
        talk.end()
    except (MismatchError, TextError, UnusableError, OSError) as error:
        outcome.fail(expected, str(error) or type(error).__name__)
    finally:
        outcome.seconds = time.monotonic() - began
        talk.close()
    return outcome


def clean(server: Server) -> None:
    """Delete every job, end every pause, and check that no tube is left but the default one, and those that have been
    reported before.

    Raises:
        UncleanError: the server does not do what it is asked.
        MismatchError: another tube is left.
        OSError: it cannot be reached.
    """
    observer = Observer(server.address)
    deadline = time.monotonic() + TIMEOUT

    def ask(command: bytes) -> bytes:
        if time.monotonic() > deadline:
            raise UncleanError(f"jobs are still left after deleting for {TIMEOUT:g} s")
        observer.send(command + b"\r\n")
        try:
            return observer.line(deadline)
        except OverdueError:
            raise UncleanError(f"no reply to {_quoted(command)} within {TIMEOUT:g} s") from None
        except HangUpError:
            raise UncleanError(f"no reply to {_quoted(command)}: the server closed the connection") from None

    def skip(size: int) -> bytes:
        while len(observer.arrived) < size + 2:
            if observer.hung_up or not observer.arrives_by(deadline):
                raise UncleanError(f"{len(observer.arrived)} of {size} bytes that were announced")
        data = bytes(observer.arrived[:size])
        observer.arrived.clear()
        return data

    def tubes() -> list[bytes]:
        reply = ask(b"list-tubes")
        if not (found := re.fullmatch(rb"OK (\d{1,9})\r\n", reply)):
            raise UncleanError(f"{_quoted(reply)} as the reply to list-tubes")
        return [line[2:] for line in skip(int(found[1])).split(b"\n")[1:-1]]

    try:
        observer.settle()
        for tube in tubes():
            ask(b"use " + tube)
            for peek in (b"peek-ready", b"peek-delayed", b"peek-buried"):
                deleted = set()
                while found := re.fullmatch(rb"FOUND (\d{1,20}) (\d{1,9})\r\n", ask(peek)):
                    skip(int(found[2]))
                    if (reply := ask(b"delete " + found[1])) != b"DELETED\r\n" or found[1] in deleted:
                        again = "peeked again after " if found[1] in deleted else ""
                        raise UncleanError(f"job {found[1].decode()}, {again}delete: {_quoted(reply)}")
                    deleted.add(found[1])
            ask(b"pause-tube %b 0" % tube)
        ask(b"use default")
        ended = time.monotonic() + PATIENCE
        # A tube stays until the server has noticed that its client is gone.
        while left := {*tubes()} - {b"default"} - server.tubes_left:
            if time.monotonic() > ended:
                server.tubes_left |= left
                raise MismatchError(", ".join(shown(tube) for tube in left))
            time.sleep(PAUSE)
    finally:
        observer.close()
