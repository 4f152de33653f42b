"""The first message of a TLS client: which protocols it offers (ALPN, RFC 7301).

OpenSSL reads the message too, but as Python has it, it serves a client that offers other protocols only. RFC 7301 asks
for a refusal (section 3.2), which keeps a browser that was lured here from sending commands in the body of a request.
"""

from __future__ import annotations

from typing import Final

HANDSHAKE: Final = 22
"""The type of a record of the handshake (RFC 8446, section 5.1), with which every TLS connection begins."""

PROTOCOL: Final = b"beanstalk"
"""What a client may offer. One that offers nothing is served as well."""

HEADER_SIZE: Final = 5
"""Bytes before the content of a record: its type, a version, and its length."""

_CLIENT_HELLO: Final = 1
_ALPN: Final = 16
_BEFORE_SESSION_ID: Final = 1 + 3 + 2 + 32  # the type and the length of the message, a version, random bytes


def is_tls(data: bytes) -> bool:
    """Whether the first bytes of a connection, at least one, can be those of TLS."""
    return data[0] == HANDSHAKE and data[1:2] in (b"", b"\x03")


def offered_protocols(data: bytes) -> list[bytes]:
    """The protocols that a client offers in the first record of its connection.

    Empty if it offers none, and if the record has less than the whole message or something else: OpenSSL decides then.
    """
    try:
        return _protocols(data[HEADER_SIZE:])
    except IndexError:
        return []


def _protocols(message: bytes) -> list[bytes]:
    if message[0] != _CLIENT_HELLO:
        return []
    at = _BEFORE_SESSION_ID
    at += 1 + message[at]  # the session id
    at += 2 + _number(message, at)  # cipher suites
    at += 1 + message[at]  # ways of compression
    end = at + 2 + _number(message, at)  # extensions
    at += 2
    while at < end:
        kind = _number(message, at)
        size = _number(message, at + 2)
        at += 4
        if kind == _ALPN:
            return _names(message, at + 2, at + 2 + _number(message, at))
        at += size
    return []


def _names(message: bytes, at: int, end: int) -> list[bytes]:
    names = []
    while at < end <= len(message):
        size = message[at]
        names.append(message[at + 1 : at + 1 + size])
        at += 1 + size
    return names


def _number(message: bytes, at: int) -> int:
    """The two bytes at a position, as a number."""
    return message[at] << 8 | message[at + 1]
