"""TLS above a plain transport, as a transport for the protocol above it.

    event loop ⇄ plain transport ⇄ TlsTransport ⇄ PendingConnection, then Connection

OpenSSL works on memory (`ssl.MemoryBIO`), because the event loop's own TLS costs three times as much. It is given whole
records, few at a time, so that it keeps little memory for each connection and comes back soon:

    what                                 bound
    -----------------------------------  --------------------------------------------------------------------
    OpenSSL is given at a time           PIECE bytes or one record, and RECORDS records
    handed over at a time                READ bytes and a record
    decrypted before others have a turn  for DECRYPT_TIME and a piece, then as far as the round's budget goes
    one turn of a handshake              for HANDSHAKE_TIME and a step, which takes 0.1 to 1.5 ms
    ciphertext that waits                what one read of the plain transport brings; then it is not read from
    plaintext that waits                 none: it is encrypted at once, and waits in the plain transport

A client ends its input with a close_notify, and still gets its replies (RFC 8446, section 6.1). The end of its TCP
connection without one ends its input too: commands say where they end, so none that was cut is taken for a whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from beanstalk_server.events import event
from beanstalk_server.server.front.client_hello import HEADER_SIZE, PROTOCOL, is_tls, offered_protocols
from beanstalk_server.server.turns import COST_TIME, Runnable, Turns

RECORD: Final = 1 << 14
"""The most bytes of plaintext in a record (RFC 8446, section 5.1)."""

LONGEST_RECORD: Final = RECORD + 2048
"""The most bytes that may follow a record's header (RFC 5246, section 6.2.3). OpenSSL refuses what claims more."""

PIECE: Final = 1 << 14
"""Bytes of records that OpenSSL is given at a time. It keeps a buffer as large as the largest piece so far."""

RECORDS: Final = 32
"""Records that OpenSSL is given at a time: it goes through those without data, such as changes of keys, in one call."""

READ: Final = 1 << 16
"""Bytes of plaintext after which they are handed over."""

DECRYPT_TIME: Final = 250_000
"""Nanoseconds of decrypting after which the bytes so far are handed over: records may have one byte each."""

HANDSHAKE_TIME: Final = 500_000
"""Nanoseconds after which a turn of a handshake begins no further step."""

HELLO_LIMIT: Final = 1 << 15
"""Bytes that a client may send before it is answered. Its message has 200 to 2,000, and some KiB with a ticket."""

READ_COST: Final = 1
"""The cost of reading what brings nothing to hand over."""

RELEASE_COST: Final = 10
"""The cost of letting go of what OpenSSL has made for a connection."""

LARGE: Final = 2048
"""Bytes. glibc keeps the small blocks that are freed, some 300 for a connection, in lists until 1,024 bytes or more are
asked for, and then works through all of them: after a thousand connections for 6 to 19 ms, in one piece."""

NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\x00\x02\x02\x78"
"""The alert of that name in a record, as it is sent before anything is encrypted (RFC 8446, section 6)."""

HUNG_UP: Final = "disconnected before the handshake"
LOST: Final = "the connection was lost"
NO_FAILURES: Final = (HUNG_UP, LOST)
"""The reasons of `on_failure` that are no fault of the client: a port scan causes the same."""

log = logging.getLogger("beanstalk_server")


class TlsTransport(Runnable):
    """TLS on one connection: an asyncio protocol for the plain transport, and a transport for the protocol above.

    It inherits from neither, for the reason that `Connection` does not. Its owner is called once: `on_ready` when the
    handshake is done, and must then set a protocol and call its `connection_made` with this transport; or `on_failure`
    with a few words why, when there will be no handshake any more. Then it has closed itself, and the protocol that the
    owner may set gets `connection_lost`.

    Args:
        context: the server's certificate, and what is asked of clients.
        turns: in which the handshake is done.
    """

    _plain: asyncio.Transport

    def __init__(
        self,
        context: ssl.SSLContext,
        turns: Turns,
        on_ready: Callable[[TlsTransport], None],
        on_failure: Callable[[TlsTransport, str], None],
    ) -> None:
        super().__init__()
        self._context = context
        self._turns = turns
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._begun = False  # OpenSSL has been asked: before the first bytes, nothing is made for a client
        self._ready = False  # the handshake is done
        self._closing = False
        self._lost = False  # the plain transport is gone
        self._reading = True  # the protocol wants to read
        self._plain_reads = True  # the plain transport is read from
        self._plain_ended = False  # it has reported the end of the input
        self._peer_closed = False  # the client has sent its close_notify
        self._output_ended = False  # the client has been sent a close_notify, and is still read from
        self._ended = False  # the protocol has been told that the input has ended
        self._error: Exception | None = None  # why TLS cannot go on, after the handshake
        self._input = b""  # what has come
        self._position = 0  # where in it begins what OpenSSL has not been given
        self._protocol: Any = None
        self._ssl: Any = None  # an ssl.SSLObject, and what it reads from and writes to
        self._incoming: Any = None
        self._outgoing: Any = None

    # What the plain transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._ended:
            self._turns.spend(READ_COST)
            return
        if not self._input and self._ready and self._reading and not self.queued and _is_one_record(data):
            self._incoming.write(data)
            self._hand_over(self._read_record(len(data)))  # a buffer of RECORD bytes would cost half a microsecond
            return
        self._input = self._input[self._position :] + data if self._input else data
        self._position = 0
        if self.queued:
            return
        if self._ready:
            self._decrypt()
        else:
            self._turns.spend(READ_COST)
            self._continue_handshake()
        self._regulate()

    def eof_received(self) -> bool:
        self._plain_ended = True
        if self._closing:
            return False
        if not self.queued:
            if self._ready:
                self._decrypt()
            else:
                self._turns.enqueue_handshake(self)  # a thousand may hang up at the same time
        return not self._closing

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        if not self._ready:
            self._on_failure(self, LOST)
        protocol = self._protocol
        if protocol is not None:
            protocol.connection_lost(error or self._error)
        # Nothing of this may be in a cycle: the collector may be off.
        self._protocol = None
        self._error = None  # its traceback leads here
        self._on_ready = _ignore
        self._on_failure = _ignore_failure
        self._input = b""
        self._lost = True
        if self._turns.budget > 0:
            self._release()
        elif not self.queued:
            self._turns.enqueue(self)
            self._turns.run_pending_soon()

    def _release(self) -> None:
        """Let go of OpenSSL's objects, which takes longer than all else at the end of a connection."""
        self._ssl = self._incoming = self._outgoing = None
        if self._begun:
            bytes(
                LARGE
            )  # let the C library join what has been freed now, and not that of a thousand connections at once
            self._turns.spend(RELEASE_COST)

    # What `Turns` calls

    def take_turn(self) -> int:
        """Go on with the handshake, or with input that has come; return what is not spent already."""
        if self._closing:
            if self._lost:
                self._release()
            return 0
        began = self._turns.clock()
        try:
            if not self._ready:
                self._shake_hands(began + HANDSHAKE_TIME)
                self._regulate()
                return READ_COST + (self._turns.clock() - began) // COST_TIME
            self._decrypt()
            self._regulate()
        except Exception:
            log.exception("a TLS connection failed; this is a bug in the server", event("bug-in-tls"))
            self.abort()
        return READ_COST

    def is_slow(self) -> bool:
        return False

    # What the protocol and the owner call

    def write(self, data: bytes) -> None:
        """Encrypt and send: what fits in a record in one, as most replies do."""
        if self._closing or self._output_ended or not data:
            return
        tls, outgoing = self._ssl, self._outgoing
        try:
            if len(data) <= RECORD:
                tls.write(data)
                self._plain.write(outgoing.read())
                return
            view = memoryview(data)
            records = []
            for start in range(0, len(data), RECORD):
                tls.write(view[start : start + RECORD])
                records.append(outgoing.read())
            self._plain.writelines(records)
        except ssl.SSLError as error:
            self._error = error
            self._break_off()

    def close(self) -> None:
        """Send what has been written and a close_notify, then close."""
        if self._closing:
            return
        self._closing = True
        if self._ready and not self._output_ended:
            self._send_close_notify()
        self._plain.close()

    def write_eof(self) -> None:
        """Send what has been written and a close_notify, and go on reading."""
        if not self._closing and not self._output_ended:
            self._output_ended = True
            self._send_close_notify()
            self._plain.write_eof()

    def abort(self) -> None:
        """Close at once, and discard unsent output."""
        self._closing = True
        self._plain.abort()

    def is_closing(self) -> bool:
        return self._closing or self._plain.is_closing()

    def pause_reading(self) -> None:
        self._reading = False
        self._regulate()

    def resume_reading(self) -> None:
        self._reading = True
        if self._ready and not self.queued and not self._closing and (self._has_record() or self._plain_ended):
            self._turns.enqueue(self)
            self._turns.run_pending_soon()
        self._regulate()

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._plain.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the plain transport knows: its addresses, its socket."""
        return self._plain.get_extra_info(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def names(self) -> list[str]:
        """The names in the client's certificate, which has been verified: DNS names, URIs and e-mail addresses among
        its alternative names, as they stand there, then its common names. Empty without a certificate."""
        certificate = self._ssl.getpeercert() or {}
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
        for pairs in certificate.get("subject", ()):
            names += [name for kind, name in pairs if kind == "commonName"]
        return names

    def _send_close_notify(self) -> None:
        waiting = self._incoming.read()  # OpenSSL would look there for the client's, and be surprised by data
        with contextlib.suppress(ssl.SSLError):
            self._ssl.unwrap()
        self._incoming.write(waiting)
        self._flush()

    # The handshake

    def _continue_handshake(self) -> None:
        """Ask for a turn if there is something to do in it."""
        if not self._begun:
            if not is_tls(self._input):
                self._fail("not TLS")
                return
            if len(self._input) > HELLO_LIMIT:
                self._fail("too many bytes before the handshake")
                return
        if self._has_record():
            self._turns.enqueue_handshake(self)

    def _shake_hands(self, end: int) -> None:
        """Do the steps of the handshake for which the client's part has come, until this moment."""
        if not self._begun and self._has_record() and not self._begin():
            return
        clock = self._turns.clock
        while self._begun and (self._incoming.pending or self._give_records()):
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError as error:
                self._fail(_reason_of(error))
                return
            else:
                self._flush()
                self._ready = True
                self._on_ready(self)
                self._on_ready = _ignore
                if (self._has_record() or self._plain_ended) and not self._closing:
                    self._turns.enqueue(self)
                    self._turns.run_pending_soon()
                return
            if clock() >= end and self._has_record():
                self._turns.enqueue_handshake(self)
                return
        if self._plain_ended:
            self._fail("disconnected during the handshake" if self._begun else HUNG_UP)

    def _begin(self) -> bool:
        """Make OpenSSL's part, unless the client wants another protocol; return whether it goes on."""
        offered = offered_protocols(self._input)
        if offered and PROTOCOL not in offered:
            self._plain.write(NO_APPLICATION_PROTOCOL)
            self._fail("no supported ALPN protocol offered")
            return False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._begun = True
        return True

    def _fail(self, reason: str) -> None:
        """End before the handshake is done. If OpenSSL has an alert for the client, it is sent."""
        self._closing = True
        if self._begun:
            self._flush()
        self._plain.close()
        on_failure = self._on_failure
        self._on_failure = _ignore_failure
        on_failure(self, reason)

    # Input

    def _decrypt(self) -> None:
        """Hand over what has come, as long as the protocol reads and the round has a budget; the rest in a turn."""
        turns = self._turns
        while self._reading and not self._closing and not self._ended and self._has_record():
            if turns.budget <= 0:
                turns.enqueue(self)
                turns.run_pending_soon()
                return
            began = turns.clock()
            content = self._read_records(began + DECRYPT_TIME)
            turns.spend((turns.clock() - began) // COST_TIME)
            self._hand_over(content)
        if self._plain_ended and not self._ended and not self._closing and not self._has_record():
            self._end_input()

    def _read_records(self, end: int) -> bytes:
        """Decrypt about READ bytes, or until this moment."""
        contents: list[bytes] = []
        size = 0
        incoming, clock = self._incoming, self._turns.clock
        while size < READ and not self._peer_closed and self._error is None:
            if not incoming.pending and ((contents and clock() >= end) or not self._give_records()):
                break
            content = self._read_record()
            if content:
                contents.append(content)
                size += len(content)
        return contents[0] if len(contents) == 1 else b"".join(contents)

    def _read_record(self, size: int = RECORD) -> bytes:
        """Decrypt the next record with data into a buffer of `size` bytes; b"" if it is incomplete, or at the end."""
        try:
            content: bytes = self._ssl.read(size)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            self._peer_closed = True
            return b""
        except ssl.SSLError as error:
            self._error = error
            return b""
        if not content:
            self._peer_closed = True
        return content

    def _hand_over(self, content: bytes) -> None:
        """Give the protocol what has been decrypted, and tell it if nothing will follow."""
        if self._outgoing.pending:  # an answer to a change of keys, or an alert
            self._flush()
        if content:
            self._protocol.data_received(content)
        else:
            self._turns.spend(READ_COST)
        if self._closing:
            return
        if self._error is not None:
            self._break_off()
        elif self._peer_closed and not self._ended:
            self._end_input()

    def _end_input(self) -> None:
        self._ended = True
        if self._protocol.eof_received():
            self._regulate()
        else:
            self.close()

    def _break_off(self) -> None:
        """Close: TLS has failed after the handshake. If OpenSSL has an alert for the client, it is sent."""
        self._closing = True
        self._flush()
        self._plain.close()

    def _give_records(self) -> bool:
        """Give OpenSSL the next piece; False if the next record has not all come."""
        data = self._input
        start = end = self._position
        limit = start + PIECE
        for _ in range(RECORDS):
            following = _end_of_record(data, end)
            if not following or (following > limit and end > start):
                break
            end = following
        if end == start:
            return False
        if end < len(data):
            self._incoming.write(memoryview(data)[start:end])
            self._position = end
        else:
            self._incoming.write(memoryview(data)[start:] if start else data)
            self._input = b""
            self._position = 0
        return True

    def _has_record(self) -> bool:
        """Whether a record has come that has not been decrypted."""
        return bool(_end_of_record(self._input, self._position)) or (self._begun and self._incoming.pending > 0)

    def _regulate(self) -> None:
        """Read from the plain transport, unless input waits, or the protocol has paused reading."""
        reads = self._reading and not self.queued and not self._ended
        if reads is not self._plain_reads and not self._plain_ended and not self.is_closing():
            self._plain_reads = reads
            if reads:
                self._plain.resume_reading()
            else:
                self._plain.pause_reading()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.write(self._outgoing.read())


def _is_one_record(data: bytes) -> bool:
    """Whether these bytes are a whole record, and no more."""
    return len(data) > HEADER_SIZE and HEADER_SIZE + (data[3] << 8 | data[4]) == len(data)


def _end_of_record(data: bytes, start: int) -> int:
    """Where the record ends that begins here; 0 if it has not all come. One that claims to be too long ends nowhere:
    all of it is for OpenSSL to refuse."""
    if start + HEADER_SIZE > len(data):
        return 0
    size = data[start + 3] << 8 | data[start + 4]
    if size > LONGEST_RECORD:
        return len(data)
    end = start + HEADER_SIZE + size
    return end if end <= len(data) else 0


def _reason_of(error: ssl.SSLError) -> str:
    """Why a handshake has failed, in a few words. OpenSSL's words come from a table, never from the client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "no certificate"
    return f"handshake failed: {(error.reason or 'no reason given').lower().replace('_', ' ')}"


def _ignore(_: TlsTransport) -> None:
    """Takes the place of `on_ready`."""


def _ignore_failure(_: TlsTransport, __: str) -> None:
    """Takes the place of `on_failure`."""
