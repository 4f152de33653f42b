r"""A link: one connection between two processes, which carries the clients of one of them to the other.

    standby                                    leader
    HELLO      version, shard, epoch,     ──→
               nonce
                                          ←──  CHALLENGE  nonce, proof
    PROOF      proof                      ──→
                                          ←──  WELCOME    what the standby must know of the leader
    OPEN       a client: who it is        ──→
    DATA       its commands               ──→
                                          ←──  DATA       its replies
    STOP, HANGUP, END, USER, CLOSE        ──→
                                          ←──  REST, CLOSE, GOODBYE
    PING, CREDIT, NOTE                    ←─→

Each frame is a header and a payload. Each client has a number on the link, and what it has there is its channel. Either
side may send WINDOW bytes on a channel, and more as the other side gives it credit: so a client that does not read
does not hold up others, and takes no more memory than that.

A link is for one shard, whose lease both ends know. The leader ends it by a GOODBYE. A clean one says: all executed
commands have been answered before this frame, and a command without an answer was not executed. Replies that wait for
room are sent before it as REST, so a client that does not read makes no difference.

    what                            bound                       beyond it
    ------------------------------  --------------------------  ----------------------------------
    the payload of a frame          FRAME_LIMIT                 the link is closed
    the same before the proof       GREETING_LIMIT              the link is closed
    bytes on a channel              WINDOW, each way            wait where they are
    its replies beyond that, when   REST_LIMIT                  the client is disconnected
    a clean GOODBYE follows
    who a client is, in all frames  OPENING_LIMIT               the link is closed
    channels                        CHANNEL_LIMIT               the client is disconnected
    silence, or the greeting        SILENT_TICKS and one more   the link is dead

Both ends prove that they know the secret of the lease, by an HMAC over both nonces; so neither can be made to take part
in a cluster that it does not belong to. Nothing is encrypted: links belong into a network of their own. Between a
server and its I/O processes no proof is needed, because no other process has their pair of sockets: there is no
greeting, what is said here of a standby is true of an I/O process, and of the leader of the server's own process.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import struct
from collections.abc import Callable
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.queue.native import mypyc_attr

VERSION: Final = 2
"""Of what is said on a link. Both ends must have the same."""

FRAME_LIMIT: Final = 1 << 16
"""Bytes of payload in a frame."""

GREETING_LIMIT: Final = 1 << 10
"""Bytes of payload in a frame before the handshake is complete."""

WINDOW: Final = 1 << 16
"""Bytes on a channel that have been sent and for which the other side has given no credit, each way."""

REST_LIMIT: Final = 1 << 20
"""Bytes on a channel beyond its window, before a clean GOODBYE: four times what a client that does not read makes the
leader keep, so that only one very long reply is too long."""

OPENING_LIMIT: Final = 1 << 26
"""Bytes that describe a client: enough for 300,000 watched tubes with the longest names."""

CHANNEL_LIMIT: Final = 1 << 20
"""Clients on a link at a time."""

TICK: Final = 1.0
"""Seconds between two calls of `tick`."""

SILENT_TICKS: Final = 3
"""A link is dead at the first tick after this many without a frame. What counts are ticks, and not time, so that a
process that was stopped for a while looks at its input before it decides."""

NOT_LEADING: Final = "it does not lead"
"""The farewell of a node that does not lead the shard, or not yet."""

NONCE_BYTES: Final = 32
"""Random bytes that each end makes for a link."""

HEADER: Final = struct.Struct(">BII")
"""The type of a frame, the number of its channel or 0, and the size of its payload in bytes."""

HEADER_SIZE: Final = 9

# Types of frames
HELLO: Final = 1
CHALLENGE: Final = 2
PROOF: Final = 3
WELCOME: Final = 4
GOODBYE: Final = 5  # the leader does not lead any more, or never did; nothing follows
PING: Final = 6  # this side is alive
OPEN_PART: Final = 7  # who a client is, where that does not fit in one frame
OPEN: Final = 8  # the last part of it, or the only one
DATA: Final = 9
CREDIT: Final = 10  # this many bytes more may be sent
HANGUP: Final = 11  # the client has shut down its sending side; some of its commands may still come
END: Final = 12  # the client has shut down its sending side, and all its commands have come
USER: Final = 13  # the client is another user from now on
CLOSE: Final = 14  # the client has left, is abandoned, or is to be disconnected: at once, or when all was sent to it
NOTE: Final = 15  # something that the owners of both ends understand; of no client
STOP: Final = 16  # if the client waits for a job, it does so no longer
REST: Final = 17  # the last data on a channel, beyond its window: a clean GOODBYE follows

_GREETING: Final = struct.Struct(f">HHQ{NONCE_BYTES}s")  # HELLO: version, shard, epoch, nonce, and then the node's name
_CHALLENGE: Final = struct.Struct(f">{NONCE_BYTES}s32s")
_WELCOME: Final = struct.Struct(">I")
_SIZE: Final = struct.Struct(">I")
_BEGINNING: Final = struct.Struct(">BI")
_FROM_LEADER: Final = frozenset({CHALLENGE, WELCOME, GOODBYE, PING, DATA, CREDIT, CLOSE, NOTE, REST})
_FROM_STANDBY: Final = frozenset(
    {HELLO, PROOF, PING, OPEN_PART, OPEN, DATA, CREDIT, HANGUP, END, USER, CLOSE, NOTE, STOP}
)
_FROM_IO_PROCESS: Final = _FROM_STANDBY - {HELLO, PROOF, USER, STOP}
_ABANDONED: Final = b"\2"  # in a CLOSE: the node lets the client go, which has not left by itself
_SIZES: Final = [_SIZE.pack(size) for size in range(1024)]  # as they end a header: most payloads are short
_LAST_NUMBER: Final = 2**32 - 1

log = logging.getLogger("beanstalk_server")


class LinkError(Exception):
    """The other end sends what no such end sends, or has not proved that it knows the secret. One line for the log."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Channel:
    """One client's bytes on a link, as one of its ends sees them.

    The `on_` methods are called while the link receives something. They do nothing here, and must not raise.
    """

    def __init__(self) -> None:
        self.link: Link | None = None
        self.number = 0
        self._beginning = b""  # of the headers of its data
        self._credit = WINDOW  # bytes that may be sent
        self._allowed = WINDOW  # bytes that the other side may send
        self._owed = 0  # bytes that have been taken, and for which no credit has been given
        self._rest = 0  # bytes that have come beyond the window
        self._waits = False  # it is to be told when the link takes more

    def attach(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self._beginning = _BEGINNING.pack(DATA, number)
        self._credit = self._allowed = WINDOW
        self._owed = 0
        self._rest = 0
        self._waits = False

    # What the owner calls

    def room(self) -> int:
        """How many bytes may be sent now. If they are too few, `on_room` follows."""
        link = self.link
        if link is None:
            return 0
        if link.clogged:
            if not self._waits:
                self._waits = True
                link.waiting.append(self)
            return 0
        return self._credit

    def send(self, data: bytes) -> None:
        """Send bytes, not more than there is room for."""
        link = self.link
        size = len(data)
        assert link is not None and size <= self._credit, "there is room for it"
        self._credit -= size
        link.send_data(self._beginning, data, size)

    def send_rest(self, data: bytes) -> None:
        """Send the last bytes, at most REST_LIMIT, also without room: a clean GOODBYE follows."""
        link = self.link
        assert link is not None and len(data) <= REST_LIMIT, "it is attached, and may send so much"
        for start in range(0, len(data), FRAME_LIMIT):
            link.send(REST, self.number, data[start : start + FRAME_LIMIT])

    def consumed(self, size: int) -> None:
        """Note that this many bytes which have come are not kept here any more: as many may follow."""
        self._owed += size
        link = self.link
        if link is not None and self._owed >= WINDOW >> 1:
            self._allowed += self._owed
            link.send(CREDIT, self.number, _SIZE.pack(self._owed))
            self._owed = 0

    def stop_waiting(self) -> None:
        """Let the client wait for a job no longer. It is answered all the same: TIMED_OUT, or a job before it."""
        if self.link is not None:
            self.link.send(STOP, self.number, b"")

    def send_hangup(self) -> None:
        if self.link is not None:
            self.link.send(HANGUP, self.number, b"")

    def send_end(self) -> None:
        if self.link is not None:
            self.link.send(END, self.number, b"")

    def send_user(self, name: str) -> None:
        if self.link is not None:
            self.link.send(USER, self.number, name.encode())

    def close_channel(self, *, at_once: bool) -> None:
        """Tell the other side that nothing more follows; no `on_` method is called any more."""
        link = self.link
        if link is not None:
            self.link = None
            link.channels.pop(self.number, None)
            link.send(CLOSE, self.number, b"\1" if at_once else b"\0")

    def abandon(self) -> None:
        """Let go of the client, as if the link had ended: it has not left by itself."""
        link = self.link
        if link is not None:
            self.link = None
            link.channels.pop(self.number, None)
            link.send(CLOSE, self.number, _ABANDONED)

    # What the link calls

    def on_open(self) -> None:
        """It has been attached: the other side has opened it."""

    def on_data(self, data: bytes) -> None:
        """Bytes have come."""

    def on_room(self) -> None:
        """There is room for more."""

    def on_stop(self) -> None:
        """The client waits for a job no longer, if it does."""

    def on_hangup(self) -> None:
        """The client waits for nothing any more."""

    def on_end(self) -> None:
        """The client sends nothing more."""

    def on_user(self, name: str) -> None:
        """The client is this user from now on."""

    def on_close(self, *, at_once: bool) -> None:
        """The other side has closed the channel, which is not attached any more."""

    def on_goodbye(self) -> None:
        """This end is about to say a clean GOODBYE. What has been executed and not been answered must be answered now,
        or the channel be closed."""

    def on_lost(self, *, is_clean: bool) -> None:
        """The link has ended, or the other side has abandoned the channel, which is not attached any more.

        Args:
            is_clean: whether it has ended with a clean GOODBYE.
        """

    def receive_data(self, payload: bytes) -> None:
        """Take a frame with data.

        Raises:
            LinkError: it may not have this many.
        """
        size = len(payload)
        if not size:
            raise LinkError("empty DATA frame")
        self._allowed -= size
        if self._allowed < 0:
            raise LinkError("DATA frame beyond the credit of its channel")
        self.on_data(payload)

    def receive(self, kind: int, payload: bytes) -> None:
        """Take another frame.

        Raises:
            LinkError: it is not what such a frame looks like.
        """
        if kind == CREDIT:
            if len(payload) != _SIZE.size:
                raise LinkError("CREDIT frame of the wrong size")
            before = self._credit
            self._credit += _SIZE.unpack(payload)[0]
            if self._credit > WINDOW:
                raise LinkError("credit beyond the window")
            if self._credit > before:
                self.on_room()
        elif kind == STOP:
            self.on_stop()
        elif kind == REST:
            self._rest += len(payload)
            if not payload or self._rest > REST_LIMIT:
                raise LinkError("empty REST frame, or more than REST_LIMIT bytes")
            self.on_data(payload)
        elif kind == HANGUP:
            self.on_hangup()
        elif kind == END:
            self.on_end()
        elif kind == USER:
            self.on_user(_text(payload))
        else:
            self.link = None
            if payload == _ABANDONED:
                self.on_lost(is_clean=False)
            else:
                self.on_close(at_once=payload != b"\0")

    def take_room(self) -> None:
        """Go on: the link takes more."""
        self._waits = False
        if self.link is not None:
            self.on_room()


class Link:
    """One end of a link.

    Args:
        dials: whether it is the standby's end, which speaks first.
        shard: whose clients it carries; only at the standby's end.
        secret: of the lease of that shard; only at the standby's end.
        epoch: of the same lease. The leader refuses a standby that has seen another one.
        find: returns the secret and the epoch of a shard's lease, or None if this node does not lead it; only at the
            leader's end. Where there is neither this nor a secret, nothing is to be proved, and both ends are open
            from the beginning.
        node: what the other end calls this one in its log.
        nonce: NONCE_BYTES random bytes, if anything is to be proved.
        on_output: called when there is something to send, until `take_output`.
        on_open: called when both ends have proved what they know.
        accept: makes the channel of a client that the other end opens, of the bytes that describe it; or raises
            ValueError. Only at the leader's end.
        max_job_size: of the leader; only at the leader's end, and from `on_open` on at the other.
        on_note: takes the notes of the other end; None if it may send none.
        handshake_grace: ticks that may pass before its first frame, besides SILENT_TICKS.
        trusts: the other end is never taken for dead: the system tells when it is.
    """

    def __init__(
        self,
        *,
        dials: bool,
        on_output: Callable[[], None],
        shard: int = 0,
        secret: str = "",
        epoch: int = 0,
        find: Callable[[int], tuple[str, int] | None] | None = None,
        node: str = "",
        nonce: bytes = b"",
        on_open: Callable[[Link], None] | None = None,
        accept: Callable[[bytes], Channel] | None = None,
        max_job_size: int = 0,
        on_note: Callable[[bytes], None] | None = None,
        handshake_grace: int = 0,
        trusts: bool = False,
    ) -> None:
        proves = bool(secret) if dials else find is not None
        if len(nonce) != (NONCE_BYTES if proves else 0):
            raise ValueError("a link with a secret must have a nonce, and other links must not")
        self.shard = shard  # at the leader's end -1 until it is known
        self.epoch = epoch
        self.node = node
        self.peer = ""  # what the other end calls itself
        self.max_job_size = max_job_size
        self.is_open = not proves  # both ends have proved that they know the secret
        self.farewell: str | None = None  # what the leader has said with its GOODBYE
        self.is_clean = False  # that GOODBYE, whichever end has said it, is a clean one
        self.closing = False  # this end has said GOODBYE: nothing more is sent
        self.clogged = False  # what has been sent waits in this process: nothing more is sent on a channel
        self.channels: dict[int, Channel] = {}
        self.waiting: list[Channel] = []  # those that are told when the link takes more
        self.dials = dials
        self._find = find
        self._kinds = _FROM_LEADER if dials else _FROM_STANDBY if proves else _FROM_IO_PROCESS
        self._secret = secret.encode()
        self._nonce = nonce
        self._their_nonce = b""
        self._on_output = on_output
        self._on_open = on_open
        self._on_note = on_note
        self._accept = accept
        self._trusts = trusts
        self._number = 0  # of the last channel that has been opened
        self._opening: list[bytes] = []  # the parts of an opening that has not all come
        self._opening_number = 0
        self._output: list[bytes] = []
        self._rest = b""  # has come, and has not been done
        self._position = 0  # where in the rest begins what has not been done
        self._silent = -handshake_grace  # ticks since the last frame
        if proves:
            if dials:
                self.send(HELLO, 0, _GREETING.pack(VERSION, shard, epoch, nonce) + node.encode())
            else:
                self.shard = -1

    # What the owner calls

    def receive(self, data: bytes, most: int = 0) -> bool:
        """Take bytes from the other end, and do the frames that have come; return whether there are more.

        Args:
            most: how many frames are done, at most; 0 for all.

        Raises:
            LinkError: the link must be closed.
        """
        position = self._position
        if data:
            data = self._rest[position:] + data if len(self._rest) > position else data
            position = 0
        else:
            data = self._rest
        end = len(data)
        left = most or end
        limit = FRAME_LIMIT if self.is_open else GREETING_LIMIT
        has_more = False
        while end - position >= HEADER_SIZE:
            # Not by the struct: compiled, this takes a third of the time.
            kind = data[position]
            size = data[position + 5] << 24 | data[position + 6] << 16 | data[position + 7] << 8 | data[position + 8]
            if size > limit:
                raise LinkError(
                    f"frame of {size} bytes: the limit is {FRAME_LIMIT}"
                    if self.is_open
                    else "expected a handshake frame"
                )
            beginning = position + HEADER_SIZE
            following = beginning + size
            if following > end:
                break
            if not left:
                has_more = True
                break
            left -= 1
            number = data[position + 1] << 24 | data[position + 2] << 16 | data[position + 3] << 8 | data[position + 4]
            payload = data[beginning:following]
            position = following
            if kind == DATA and self.is_open:
                self._silent = 0
                self._give(number, kind, payload)
            else:
                self._take(kind, number, payload)
                if self.farewell is not None:
                    position = end  # nothing counts that follows
                    break
                limit = FRAME_LIMIT if self.is_open else GREETING_LIMIT
        if has_more:
            self._rest = data
            self._position = position
        else:
            self._rest = data[position:]
            self._position = 0
        return has_more

    def take_output(self) -> bytes:
        """What is to be sent, in one piece."""
        data = b"".join(self._output)
        self._output.clear()
        return data

    def tick(self) -> bool:
        """Say that this side is alive. Must be called each TICK; False if the other side is not, or will not greet."""
        self._silent += 1
        if self._silent > SILENT_TICKS and not self._trusts:
            return False
        if self.is_open and not self.closing:
            self.send(PING, 0, b"")
        return True

    def open(self, channel: Channel, payload: bytes) -> bool:
        """Open a channel for a client, which these bytes describe; False if there are too many, or it has told the
        server too much."""
        if len(self.channels) >= CHANNEL_LIMIT or len(payload) > OPENING_LIMIT:
            return False
        number = self._number
        while True:
            number = number + 1 if number < _LAST_NUMBER else 1
            if number not in self.channels:
                break
        self._number = number
        self.channels[number] = channel
        channel.attach(self, number)
        last = max(len(payload) - 1, 0) // FRAME_LIMIT * FRAME_LIMIT
        for start in range(0, last, FRAME_LIMIT):
            self.send(OPEN_PART, number, payload[start : start + FRAME_LIMIT])
        self.send(OPEN, number, payload[last:])
        return True

    def say_goodbye(self, why: str, is_clean: bool = False) -> None:
        """Tell the standby that this end does not lead. Nothing may be sent afterwards; the standby closes.

        Args:
            is_clean: promise that all executed commands have been answered. Channels that cannot keep this promise
                are closed first.
        """
        if is_clean:
            for channel in list(self.channels.values()):
                try:
                    channel.on_goodbye()
                except Exception:
                    self._fail(channel)
        self.closing = True
        self.is_clean = is_clean
        self.send(GOODBYE, 0, (b"\1" if is_clean else b"\0") + why.encode()[: GREETING_LIMIT - 1])

    def clog(self) -> None:
        """Send nothing more on channels: what has been sent waits in this process."""
        self.clogged = True

    def unclog(self) -> None:
        """Go on, each channel in its turn."""
        self.clogged = False
        waiting = self.waiting
        self.waiting = []
        for position, channel in enumerate(waiting):
            if self.clogged:
                self.waiting[:0] = waiting[position:]
                return
            channel.take_room()

    def take_channels(self) -> list[Channel]:
        """Detach all channels: the link has ended. The owner calls their `on_lost`."""
        channels = list(self.channels.values())
        self.channels.clear()
        self.waiting.clear()
        for channel in channels:
            channel.link = None
        return channels

    def detach(self) -> None:
        """Drop all callbacks: they make a cycle with the owner, and the garbage collector may be off."""
        self._accept = None
        self._find = None
        self._on_open = None
        self._on_note = None
        self._on_output = _ignore

    def send_data(self, beginning: bytes, payload: bytes, size: int) -> None:
        """Send a frame of data.

        Args:
            beginning: of its header, before the size.
        """
        output = self._output
        was_empty = not output
        output.append(beginning)
        output.append(_SIZES[size] if size < 1024 else _SIZE.pack(size))
        output.append(payload)
        if was_empty:
            self._on_output()

    def send(self, kind: int, number: int, payload: bytes) -> None:
        """Send another frame."""
        output = self._output
        was_empty = not output
        output.append(HEADER.pack(kind, number, len(payload)) + payload)
        if was_empty:
            self._on_output()

    # Frames

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind not in self._kinds:
            raise LinkError(f"unexpected frame of type {kind}")
        if kind == GOODBYE:
            if payload[:1] not in (b"\0", b"\1"):
                raise LinkError("invalid GOODBYE frame")
            self.farewell = _text(payload[1:])
            self.is_clean = payload[:1] == b"\1"
        elif not self.is_open:
            self._greet(kind, payload)
        else:
            self._silent = 0
            if kind in (OPEN_PART, OPEN):
                self._take_opening(kind, number, payload)
            elif kind == NOTE:
                if self._on_note is None:
                    raise LinkError("unexpected NOTE frame")
                self._on_note(payload)
            elif kind >= DATA:
                self._give(number, kind, payload)
            elif kind != PING:
                raise LinkError("handshake frame after the handshake")

    def _give(self, number: int, kind: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        if channel is None:  # it was closed while this was on its way
            return
        if kind == CLOSE:
            del self.channels[number]
        try:
            if kind == DATA:
                channel.receive_data(payload)
            else:
                channel.receive(kind, payload)
        except LinkError:
            raise
        except Exception:
            self._fail(channel)

    def _fail(self, channel: Channel) -> None:
        """Disconnect a client for which something has failed just now."""
        log.exception(
            "a client of %(peer)s failed; this is a bug in the server", event("bug-in-linked-client", peer=self.peer)
        )
        channel.close_channel(at_once=True)
        channel.on_close(at_once=True)

    def _take_opening(self, kind: int, number: int, payload: bytes) -> None:
        parts = self._opening
        if parts and number != self._opening_number:
            raise LinkError("incomplete OPEN frames")
        parts.append(payload)
        self._opening_number = number
        if kind == OPEN_PART:
            if len(parts) * FRAME_LIMIT > OPENING_LIMIT:
                raise LinkError(f"OPEN frames of more than {OPENING_LIMIT} bytes")
            return
        self._opening = []
        if number in self.channels:
            raise LinkError(f"channel {number} is already open")
        if len(self.channels) >= CHANNEL_LIMIT:
            self.send(CLOSE, number, b"\1")
            return
        assert self._accept is not None, "only a leader gets openings"
        try:
            channel = self._accept(b"".join(parts))
        except ValueError as error:
            raise LinkError(f"invalid OPEN frame: {error}") from error
        channel.attach(self, number)
        self.channels[number] = channel
        channel.on_open()

    # The handshake

    def _greet(self, kind: int, payload: bytes) -> None:
        if kind == HELLO and not self._their_nonce:
            self._take_hello(payload)
        elif kind == CHALLENGE and not self._their_nonce:
            if len(payload) != _CHALLENGE.size:
                raise LinkError("expected a handshake frame")
            self._their_nonce, proof = _CHALLENGE.unpack(payload)
            self._demand(proof, b"leader")
            self.send(PROOF, 0, self._proof(b"standby"))
        elif kind == PROOF and self._their_nonce and not self.closing:
            self._demand(payload, b"standby")
            self.send(WELCOME, 0, _WELCOME.pack(self.max_job_size))
            self._begin()
        elif kind == WELCOME and self._their_nonce:
            if len(payload) != _WELCOME.size:
                raise LinkError("expected a handshake frame")
            self.max_job_size = _WELCOME.unpack(payload)[0]
            self._begin()
        else:
            raise LinkError("expected a handshake frame")

    def _take_hello(self, payload: bytes) -> None:
        if len(payload) < _GREETING.size:
            raise LinkError("expected a handshake frame")
        version, shard, epoch, self._their_nonce = _GREETING.unpack_from(payload)
        if version != VERSION:
            self.say_goodbye(f"link version {version} is not supported: must be {VERSION}")
            return
        self.peer = _text(payload[_GREETING.size :])
        self.shard = shard
        assert self._find is not None, "only a leader gets a HELLO"
        found = self._find(shard)
        if found is None:
            self.say_goodbye(NOT_LEADING)
            return
        secret, self.epoch = found
        self._secret = secret.encode()
        if epoch != self.epoch:
            self.say_goodbye(f"it leads in epoch {self.epoch}, not {epoch}")
        else:
            self.send(CHALLENGE, 0, _CHALLENGE.pack(self._nonce, self._proof(b"leader")))

    def _begin(self) -> None:
        self.is_open = True
        self._silent = 0
        if self._on_open is not None:
            self._on_open(self)

    def _proof(self, role: bytes) -> bytes:
        """The HMAC that proves the secret, for this link and this end of it."""
        standby, leader = (self._nonce, self._their_nonce) if self.dials else (self._their_nonce, self._nonce)
        said = b"%b of link %d for shard %d in epoch %d" % (role, VERSION, self.shard, self.epoch)
        return hmac.digest(self._secret, said + standby + leader, hashlib.sha256)

    def _demand(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise LinkError("wrong lease secret")


def _text(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise LinkError("name is not printable text") from error
    if not text.isprintable():  # it is for the log
        raise LinkError("name is not printable text")
    return text


def _ignore() -> None:
    """Takes the place of `on_output`."""
