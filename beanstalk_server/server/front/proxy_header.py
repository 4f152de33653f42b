r"""Parses the header of the PROXY protocol, versions 1 and 2.

    PROXY TCP4 192.0.2.7 192.0.2.1 52144 11300\r\n          version 1: one line

    \r\n\r\n\0\r\nQUIT\n   0x21   0x11   0x000c             version 2: a signature, version and command, family and
    addresses and ports    type   length   value …          transport, length; addresses; then TLVs

From a header comes the client's address, and, in version 2, the common name of its certificate, if the proxy has
verified one. The caller must check that the proxy is trusted.

Specification: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt; the sections named here are its.
"""

from __future__ import annotations

import re
import socket
from typing import Final, NamedTuple

from beanstalk_server.server.front.addresses import name_of_address

LONGEST_LINE: Final = 107
"""Bytes of a header of version 1, CR LF included (section 2.1)."""

LONGEST_HEADER: Final = 4096
"""Bytes of a header of version 2. The specification allows 65,551; what proxies send are a few hundred."""

LINE_START: Final = b"PROXY "
SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
FIXED_SIZE: Final = 16  # the part of version 2 that is always there

LOCAL: Final = 0x20  # version 2, and a command
PROXY: Final = 0x21

UNSPECIFIED: Final = 0  # a family, or a transport
INET: Final = 1
INET6: Final = 2
UNIX: Final = 3
LAST_TRANSPORT: Final = 2
ADDRESS_SIZES: Final = {INET: 12, INET6: 36, UNIX: 216}

TYPE_SSL: Final = 0x20
SUBTYPE_CN: Final = 0x22
SSL_FIXED_SIZE: Final = 5  # what the client has, and the result of the verification; then TLVs
VERIFIED: Final = bytes(4)
OVER_TLS: Final = 0x01
HAS_CERTIFICATE: Final = 0x02 | 0x04  # on this connection, or on another one of its TLS session

PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}")


class ProxyHeader(NamedTuple):
    """What a proxy says of a client."""

    size: int
    """Bytes of the header: what follows is the client's."""
    source: str = ""
    """The client's address, as the log writes it; "" if the proxy does not say."""
    certificate_name: str = ""
    """The common name of the client's certificate, which the proxy has verified; "" if there is none."""
    is_local: bool = False
    """The proxy speaks for itself: it looks whether the server is alive."""


def read_header(data: bytes) -> ProxyHeader | str | None:
    """The header at the beginning of what a connection has sent.

    However the bytes are split: what the first piece with an answer gives, every longer one gives too.

    Returns:
        None: more bytes must come. A text: there is no header, because of this.
    """
    if data.startswith(LINE_START[: len(data)]):
        return _read_line(data)
    if data.startswith(SIGNATURE[: len(data)]):
        return _read_binary(data)
    return "no PROXY header"


# Version 1 (section 2.1)


def _read_line(data: bytes) -> ProxyHeader | str | None:
    end = data.find(b"\n", 0, LONGEST_LINE)
    if end < 0:
        return None if len(data) < LONGEST_LINE else f"PROXY line too long: the limit is {LONGEST_LINE} bytes"
    if not data.endswith(b"\r", 0, end):
        return "PROXY line does not end with CR LF"
    size = end + 1
    words = data[: end - 1].split(b" ")
    if words[1] == b"UNKNOWN":  # anything may follow
        return ProxyHeader(size)
    family = {b"TCP4": socket.AF_INET, b"TCP6": socket.AF_INET6}.get(words[1])
    if family is None or len(words) != 6:
        return "malformed PROXY line"
    _, _, source, destination, source_port, destination_port = words
    for address in (source, destination):
        if not _is_address(family, address):
            return "bad address in the PROXY line"
    for port in (source_port, destination_port):
        if not PORT.fullmatch(port) or int(port) > 65535:
            return "bad port in the PROXY line"
    return ProxyHeader(size, name_of_address((source.decode("ascii"), int(source_port))))


def _is_address(family: int, text: bytes) -> bool:
    try:
        socket.inet_pton(family, text.decode("ascii"))
    except (OSError, ValueError):
        return False
    return True


# Version 2 (section 2.2)


def _read_binary(data: bytes) -> ProxyHeader | str | None:
    if len(data) < FIXED_SIZE:
        return None
    command = data[12]
    family, transport = divmod(data[13], 16)
    size = FIXED_SIZE + int.from_bytes(data[14:16])
    if command not in (LOCAL, PROXY):
        return f"bad version or command in the PROXY header: 0x{command:02x}"
    if size > LONGEST_HEADER:
        return f"PROXY header of {size} bytes: the limit is {LONGEST_HEADER}"
    if command == LOCAL:  # the rest is ignored
        return ProxyHeader(size, is_local=True) if len(data) >= size else None
    if family > UNIX or transport > LAST_TRANSPORT:
        return f"bad family or transport in the PROXY header: 0x{data[13]:02x}"
    if len(data) < size:
        return None
    if UNSPECIFIED in (family, transport):  # the length of the addresses is not defined
        return ProxyHeader(size)
    addresses_size = ADDRESS_SIZES[family]
    addresses = data[FIXED_SIZE:size]
    if len(addresses) < addresses_size:
        return f"PROXY header with only {len(addresses)} bytes of addresses"
    tlvs = _tlvs(addresses[addresses_size:])
    if tlvs is None:
        return "truncated TLV in the PROXY header"
    return ProxyHeader(size, _source(family, addresses), _certificate_name(tlvs))


def _source(family: int, addresses: bytes) -> str:
    if family == INET:
        return name_of_address((socket.inet_ntop(socket.AF_INET, addresses[:4]), int.from_bytes(addresses[8:10])))
    if family == INET6:
        return name_of_address((socket.inet_ntop(socket.AF_INET6, addresses[:16]), int.from_bytes(addresses[32:34])))
    path = addresses[:108].partition(b"\0")[0]
    return "unix:" + ascii(path)[2:-1] if path else ""


def _certificate_name(tlvs: list[tuple[int, bytes]]) -> str:
    """The common name in the TLV of the type SSL (section 2.2.6), if the certificate has been verified."""
    found = [value for kind, value in tlvs if kind == TYPE_SSL]
    if len(found) != 1:
        return ""
    client, verify, inner = found[0][:1], found[0][1:SSL_FIXED_SIZE], _tlvs(found[0][SSL_FIXED_SIZE:])
    if inner is None or verify != VERIFIED or not client[0] & OVER_TLS or not client[0] & HAS_CERTIFICATE:
        return ""
    names = [value for kind, value in inner if kind == SUBTYPE_CN]
    try:
        return names[0].decode() if len(names) == 1 else ""
    except UnicodeDecodeError:
        return ""  # it is no name


def _tlvs(data: bytes) -> list[tuple[int, bytes]] | None:
    """Types and values; None if one is cut."""
    found = []
    position = 0
    while position < len(data):
        start = position + 3
        end = start + int.from_bytes(data[position + 1 : start])
        if start > len(data) or end > len(data):
            return None
        found.append((data[position], data[start:end]))
        position = end
    return found
