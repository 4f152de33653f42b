"""Headers of the PROXY protocol: how they are made, and examples, each with what is to be found in it."""

import socket
from itertools import pairwise

from beanstalk_server.server.front.proxy_header import LONGEST_HEADER, SIGNATURE, ProxyHeader

LOCAL = "the proxy itself"

V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("192.0.2.1") + b"\x30\x39\x2c\x24"
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + socket.inet_pton(socket.AF_INET6, "::1") + b"\x30\x39\x2c\x24"


def binary(rest=b"", command=0x21, family=0x11, size=None):
    return SIGNATURE + bytes([command, family]) + (len(rest) if size is None else size).to_bytes(2) + rest


def tlv(kind, value):
    return bytes([kind]) + len(value).to_bytes(2) + value


def tls(name=b"billing", client=0x07, verify=0, more=b""):
    return tlv(0x20, bytes([client]) + verify.to_bytes(4) + tlv(0x21, b"TLSv1.3") + tlv(0x22, name) + more)


def cut(data, points):
    edges = [0, *sorted({point % (len(data) + 1) for point in points}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


SOURCES = {
    b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300\r\n": "192.0.2.7:12345",
    b"PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n": "0.0.0.0:0",
    b"PROXY TCP6 2001:db8::7 ::1 12345 11300\r\n": "[2001:db8::7]:12345",
    b"PROXY TCP6 %b %b 65535 65535\r\n" % ((b"ffff:" * 8)[:-1], (b"FFFF:" * 8)[:-1]): f"[{('ffff:' * 8)[:-1]}]:65535",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN anything at all 1 2 3 \xff\r\n": "",
    b"PROXY UNKNOWN %b\r\n" % (b"x" * 91): "",
    binary(V4): "192.0.2.7:12345",
    binary(V4, family=0x12): "192.0.2.7:12345",
    binary(V6, family=0x21): "[2001:db8::7]:12345",
    binary(b"/run/client".ljust(108, b"\0") + bytes(108), family=0x31): "unix:/run/client",
    binary(b"/run/\n\xff".ljust(108, b"\0") + bytes(108), family=0x31): r"unix:/run/\n\xff",
    binary(bytes(216), family=0x31): "",
    binary(b"/" * 216, family=0x32): "unix:" + "/" * 108,
    binary(family=0x00): "",
    binary(V4 + tls(), family=0x00): "",
    binary(V4, family=0x10): "",
    binary(command=0x20, family=0x00): LOCAL,
    binary(V4 + tls(), command=0x20): LOCAL,
    binary(b"anything", command=0x20, family=0xFF): LOCAL,
    binary(V4 + tlv(0x04, bytes(LONGEST_HEADER - 16 - 12 - 3))): "192.0.2.7:12345",
    binary(V4 + tlv(0x04, b"") + tlv(0xE0, b"mine")): "192.0.2.7:12345",
}
GOOD = {
    data: ProxyHeader(len(data), is_local=True) if source == LOCAL else ProxyHeader(len(data), source)
    for data, source in SOURCES.items()
}

BAD = {
    b"put 0 0 60 5\r\nhello\r\n": "no PROXY header",
    b"\x16\x03\x01\x02\x00\x01": "no PROXY header",
    b"PROXYTCP4 192.0.2.7 192.0.2.1 12345 11300\r\n": "no PROXY header",
    b"proxy TCP4 192.0.2.7 192.0.2.1 12345 11300\r\n": "no PROXY header",
    b"PROXY \r\n": "malformed PROXY line",
    b"PROXY UDP4 192.0.2.7 192.0.2.1 12345 11300\r\n": "malformed PROXY line",
    b"PROXY UNKNOWNx\r\n": "malformed PROXY line",
    b"PROXY  TCP4 192.0.2.7 192.0.2.1 12345 11300\r\n": "malformed PROXY line",
    b"PROXY TCP4 192.0.2.7  192.0.2.1 12345 11300\r\n": "malformed PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300 \r\n": "malformed PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 12345\r\n": "malformed PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300\n": "PROXY line does not end with CR LF",
    b"PROXY TCP4 192.0.2.7\n192.0.2.1 12345 11300\r\n": "PROXY line does not end with CR LF",
    b"PROXY UNKNOWN\n": "PROXY line does not end with CR LF",
    b"PROXY TCP4 192.0.2.7\r192.0.2.1 12345 11300\r\n": "malformed PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.256 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 192.0.2.07 192.0.2.1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 192.0.2 192.0.2.1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 192.0.2.\xb2 192.0.2.1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 192.0.2.7\0 192.0.2.1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 2001:db8::7 ::1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP6 192.0.2.7 192.0.2.1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP6 fe80::1%eth0 ::1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP6 1::2::3 ::1 12345 11300\r\n": "bad address in the PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 65536 11300\r\n": "bad port in the PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 012 11300\r\n": "bad port in the PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 +12 11300\r\n": "bad port in the PROXY line",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 11300\r\r\n": "bad port in the PROXY line",
    b"PROXY UNKNOWN " + b"x" * 93: "PROXY line too long: the limit is 107 bytes",
    binary(V4, command=0x11): "bad version or command in the PROXY header: 0x11",
    binary(V4, command=0x22): "bad version or command in the PROXY header: 0x22",
    binary(V4, family=0x41): "bad family or transport in the PROXY header: 0x41",
    binary(V4, family=0x13): "bad family or transport in the PROXY header: 0x13",
    binary(size=LONGEST_HEADER - 15): "PROXY header of 4097 bytes: the limit is 4096",
    binary(size=65535, command=0x20): "PROXY header of 65551 bytes: the limit is 4096",
    binary(V4[:11]): "PROXY header with only 11 bytes of addresses",
    binary(V4, family=0x21): "PROXY header with only 12 bytes of addresses",
    binary(V6, family=0x31): "PROXY header with only 36 bytes of addresses",
    binary(V4 + b"\x04"): "truncated TLV in the PROXY header",
    binary(V4 + b"\x04\x00"): "truncated TLV in the PROXY header",
    binary(V4 + b"\x04\x00\x02x"): "truncated TLV in the PROXY header",
    binary(V4 + tls() + b"\x04\x00\x02x"): "truncated TLV in the PROXY header",
}
