"""The PROXY header: what proxies say of their clients, and everything else that may come in its place."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proxy_headers import BAD, GOOD, V4, V6, binary, cut, tls, tlv

from beanstalk_server.server.front.proxy_header import (
    ADDRESS_SIZES,
    SIGNATURE,
    ProxyHeader,
    read_header,
)

BEHIND = b"put 0 0 60 5\r\nhello\r\n"
"""What the client itself sends first."""


def read_in_pieces(data, pieces):
    """What a connection finds that gets these pieces one after the other, and how much has come by then."""
    come = b""
    for piece in pieces:
        come += piece
        found = read_header(come)
        if found is not None:
            return found
    assert come == data
    return None


@pytest.mark.parametrize(("data", "header"), GOOD.items())
def test_a_header_says_whom_the_proxy_speaks_for_and_where_the_clients_bytes_begin(data, header):
    assert read_header(data) == header
    assert read_header(data + BEHIND) == header


@pytest.mark.parametrize(("data", "reason"), BAD.items())
def test_what_is_no_header_is_told_from_one(data, reason):
    assert read_header(data) == reason
    assert read_header(data + BEHIND) == reason


@pytest.mark.parametrize("data", [*GOOD, *BAD])
def test_a_header_that_comes_byte_by_byte_is_the_same(data):
    found = read_in_pieces(data + BEHIND, [bytes([byte]) for byte in data + BEHIND])
    assert found == read_header(data)
    if data in GOOD:
        assert all(read_header(data[:size]) is None for size in range(len(data)))


# The name in the client's certificate


@pytest.mark.parametrize("client", [0x03, 0x05, 0x07])
def test_the_name_in_a_certificate_that_the_proxy_has_verified(client):
    header = read_header(binary(V4 + tlv(0x01, b"beanstalk") + tls(client=client) + tlv(0x05, b"id")))
    assert header.certificate_name == "billing"
    assert header.source == "192.0.2.7:12345"


@pytest.mark.parametrize(
    "tlvs",
    [
        tls(client=0x01),  # TLS without a certificate
        tls(client=0x06),  # a certificate without TLS
        tls(verify=1),
        tls(verify=1 << 31),
        tls(name=b"\xff"),
        tls(more=tlv(0x22, b"admin")),
        tls() + tls(name=b"admin"),
        tlv(0x22, b"billing"),
        tlv(0x20, b"\x07\0\0\0\0" + tlv(0x21, b"TLSv1.3")),
        tlv(0x20, b"\x07\0\0\0\0\x22\x00\xffbilling"),
        tlv(0x20, b"\x07\0\0\0"),
        tlv(0x20, b""),
        b"",
    ],
)
def test_a_certificate_that_is_not_verified_or_that_is_not_clear_names_nobody(tlvs):
    assert read_header(binary(V4 + tlvs)) == ProxyHeader(28 + len(tlvs), "192.0.2.7:12345")


# Whatever may come


anything = st.one_of(
    st.binary(max_size=300),
    st.builds(bytes.__add__, st.sampled_from([b"PROXY ", b"PROXY TCP4 ", b"PROXY UNKNOWN", SIGNATURE]), st.binary()),
    st.builds(
        binary,
        st.builds(bytes.__add__, st.sampled_from([V4, V6, bytes(216)]), st.binary(max_size=60)),
        st.sampled_from([0x20, 0x21, 0x22]),
        st.sampled_from([0x00, 0x10, 0x11, 0x12, 0x21, 0x31, 0x41]),
    ),
    st.sampled_from([*GOOD, *BAD]),
)


@given(anything, st.lists(st.integers(0, 5000), max_size=8))
@example(SIGNATURE, [3])
def test_however_the_bytes_are_cut_the_answer_is_the_same(data, points):
    data += BEHIND
    whole = read_header(data)
    assert read_in_pieces(data, cut(data, points)) == whole
    if isinstance(whole, ProxyHeader):
        assert 0 < whole.size <= len(data)


@given(st.sampled_from([*GOOD]), st.integers(0, 5000), st.integers(0, 255))
def test_a_byte_that_is_changed_on_the_way_breaks_nothing(data, at, byte):
    at %= len(data)
    changed = data[:at] + bytes([byte]) + data[at + 1 :]
    found = read_header(changed + BEHIND)
    assert found is None or isinstance(found, (str, ProxyHeader))
    if isinstance(found, ProxyHeader):
        assert found.source.isprintable()


def test_the_sizes_are_those_of_the_specification():
    assert {family: len(data) for family, data in ((1, V4), (2, V6), (3, bytes(216)))} == ADDRESS_SIZES
