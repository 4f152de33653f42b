"""Addresses and URLs as people write them, and where a token may go."""

import ssl
import traceback

import pytest
from beanstalk_client import Client
from beanstalk_client.address import Address, read_target

LOCAL = Address("127.0.0.1", 11300)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("127.0.0.1:11300", [LOCAL]),
        ("127.0.0.1", [LOCAL]),
        (("127.0.0.1", 11300), [LOCAL]),
        (LOCAL, [LOCAL]),
        (["127.0.0.1", ("queue", 1)], [LOCAL, Address("queue", 1)]),
        ((("127.0.0.1", 11300), "queue"), [LOCAL, Address("queue", 11300)]),
        ("[::1]:65535", [Address("::1", 65535)]),
        ("[::1]", [Address("::1", 11300)]),
        (("::1", 5), [Address("::1", 5)]),
        ("unix:/run/socket", [Address("", 0, "/run/socket")]),
        ("unix:socket", [Address("", 0, "socket")]),
        ("/run/socket", [Address("", 0, "/run/socket")]),
        ("./socket", [Address("", 0, "./socket")]),
        ("beanstalk://queue", [Address("queue", 11300)]),
        ("Beanstalk://queue", [Address("queue", 11300)]),
        ("beanstalk://a:1,b:2,[::1]:3/", [Address("a", 1), Address("b", 2), Address("::1", 3)]),
        ("beanstalk:///run/socket", [Address("", 0, "/run/socket")]),
    ],
)
def test_an_address_in_each_form(written, found):
    target = read_target(written)
    assert list(target.addresses) == found
    assert (target.context, target.token) == (None, "")
    assert list(read_target([written] if isinstance(written, str) else written).addresses) == found


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "host:x",
            "host:1:2",
            "a b",
            "[::1",
            "[::1]1",
            "::1",
            "a@b",
            [],
            (),
        ),
        *("host/path", "beanstalk://host/path", "http://host:1", "tcp://host", "host\n"),
        *(("127.0.0.1", "11300"), [("a", True)]),
    ],
)
def test_what_is_no_address_is_refused(written):
    with pytest.raises(ValueError, match=r"must be|no address"):
        read_target(written)


@pytest.mark.parametrize("written", [("host", 0), ("", 5), [("host", 70_000)]])
def test_a_pair_that_is_no_address_is_refused(written):
    with pytest.raises(ValueError, match="must be a host and a port"):
        read_target(written)


@pytest.mark.parametrize(
    ("written", "options", "message"),
    [
        (11300, {}, "bad address 11300: must be host:port"),
        (None, {}, "bad address None: must be host:port"),
        ("127.0.0.1", {"tls": "ca.pem"}, "tls is 'ca.pem': must be True, or ssl.create_default_context"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_what_would_be_right(written, options, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        read_target(written, **options)


def test_a_port_beside_the_host_is_refused_with_what_would_be_right():
    with pytest.raises(TypeError, match=r"encoding is 11300: .*write a host and a port as one address, host:port"):
        Client("127.0.0.1", 11300)


def test_addresses_are_shown_as_they_are_written():
    for text in ("127.0.0.1:1", "[::1]:1", "unix:/run/socket"):
        assert str(read_target(text).addresses[0]) == text


def test_a_url_has_a_token_which_is_not_shown():
    target = read_target("beanstalks://:s%2Fcret@queue.example.com,other.example.com:5")
    assert target.token == "s/cret"
    assert [address.host for address in target.addresses] == ["queue.example.com", "other.example.com"]
    assert target.context.verify_mode is ssl.CERT_REQUIRED
    assert target.context.check_hostname
    assert "cret" not in repr(target)
    assert read_target("beanstalk://:secret@127.0.0.1", token="mine").token == "mine"


@pytest.mark.parametrize(
    "written",
    [
        "beanstalk://secret@127.0.0.1",
        "beanstalk://:secret@127.0.0.1:x",
        "secret@127.0.0.1:1",
        " beanstalk://:secret@127.0.0.1",
        "beanstalk://:secret@127.0.0.1\n",
        "redis://:secret@127.0.0.1",
        ("beanstalk://:secret@127.0.0.1", 11300),
        "beanstalk://:sec%20ret@localhost",
    ],
)
def test_a_token_in_a_bad_url_is_not_shown(written):
    with pytest.raises(ValueError, match=r"must be|one word") as refused:
        read_target(written)
    assert "sec" not in "".join(traceback.format_exception_only(type(refused.value), refused.value))


@pytest.mark.parametrize("written", ["127.0.0.1", "127.3.2.1:5", "localhost", "[::1]", "unix:/x", "/x"])
def test_a_token_may_go_to_this_machine(written):
    assert read_target(written, token="secret").token == "secret"


@pytest.mark.parametrize("written", ["queue.example.com", "192.0.2.1", "[2001:db8::1]:1", ["localhost", "queue"]])
def test_a_token_does_not_cross_a_network_in_the_clear(written):
    with pytest.raises(ValueError, match="without TLS") as refused:
        read_target(written, token="secret")
    assert "secret" not in str(refused.value)
    assert read_target(written, token="secret", insecure_token=True).token == "secret"
    assert read_target(written, token="secret", tls=True).token == "secret"


def test_loopback_is_local():
    assert all(Address(host).is_local for host in ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
    assert not any(Address(host).is_local for host in ["0.0.0.0", "::", "10.0.0.1", "queue", ""])


def test_addresses_with_and_without_tls_do_not_go_together():
    with pytest.raises(ValueError, match="with and without"):
        read_target(["beanstalks://a", "b"])
    context = ssl.create_default_context()
    assert read_target(["beanstalks://a", "b"], tls=context).context is context
