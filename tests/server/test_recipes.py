"""The recipes of docs/access-recipes.md work as they stand there, and keep what they promise."""

import contextlib
import os
import socket
import ssl

import beanstalk_client
import greenstalk
import programs
import pytest
from beanstalk_client import Client, ForbiddenError, UnauthorizedError
from recipes import DIRECTORIES, PORTS

from harness.servers import ROOT
from harness.waiting import eventually

PAGE = ROOT / "docs" / "access-recipes.md"

STRANGER = 65534
"""A number that is neither root's nor that of the one that runs the tests."""


@contextlib.contextmanager
def acting_as(user):
    """What is connected in between is connected by this user."""
    group = os.getegid()
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(os.getuid())
        os.setegid(group)


def strict(path):
    """A context that trusts this authority, and asks of certificates what Python 3.13 does."""
    context = ssl.create_default_context(cafile=path)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["beanstalk"])
    return context


def is_closed(client):
    """Whether the server has closed a connection, once it has."""
    sock = client._sock if isinstance(client, greenstalk.Client) else client._connection._sock
    sock.settimeout(60)
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def can_connect(connect):
    with contextlib.suppress(UnauthorizedError, OSError):
        connect().close()
        return True
    return False


def is_refused(address, context):
    """Whether a client gets no answer, because it shows no certificate. TLS 1.3 says so after the handshake."""
    with pytest.raises(OSError), Client(address, tls=context) as client:  # noqa: PT011 an SSLError or a ConnectionError
        client.using()
    return True


@pytest.mark.slow
def test_one_application_on_one_host(follow, open_path):
    is_root = os.getuid() == 0
    shop = 1000 if is_root else os.getuid()
    recipe = follow("One application on one host", page=PAGE, user=shop)
    recipe.write()
    recipe.run()
    recipe.serve()
    with acting_as(shop) if is_root else contextlib.nullcontext():
        recipe.run_program_here()
        path = recipe.of_this_machine("/run/beanstalk/socket")
        queue = greenstalk.Client(path, use="orders", watch="orders")
    with queue:
        queue.put("43")
        with pytest.raises(greenstalk.UnknownResponseError, match="FORBIDDEN"):
            queue.stats()
        if is_root:
            with Client(path) as root:
                assert root.peek(2).body == "43"
                assert root.stats()["current-jobs-ready"] == 1
                with pytest.raises(ForbiddenError):
                    root.reserve(timeout=0)
        queue.delete(queue.reserve())
    if is_root:
        with acting_as(STRANGER), pytest.raises(PermissionError):
            Client(path)
        os.chmod(path, 0o777)  # and if that were forgotten:
        os.chmod(os.path.dirname(path), 0o755)
        with acting_as(STRANGER), pytest.raises(UnauthorizedError):
            Client(path)


@pytest.mark.slow
def test_workers_in_another_network(follow):
    recipe = follow("Workers in another network", page=PAGE)
    recipe.run()
    recipe.write()
    recipe.run()
    recipe.serve()
    recipe.run_program()
    assert recipe.run_program() == "cat.jpeg\n"

    etc = recipe.configuration
    trusting = strict(etc / "ca.pem")
    token = (etc / "web.secret").read_text().strip()
    for_tokens, for_certificates = (("localhost", recipe.ports[port]) for port in ("11301", "11302"))
    assert oct((etc / "ca.key").stat().st_mode & 0o777) == oct((etc / "web.secret").stat().st_mode & 0o777) == "0o600"
    assert token not in (etc / "server.toml").read_text()

    with pytest.raises(UnauthorizedError):
        Client(for_tokens, tls=trusting, token="nobody-has-this-token")
    with pytest.raises(ssl.SSLCertVerificationError):
        Client(for_tokens, tls=True, token=token)
    with Client(for_tokens, use="thumbnails", tls=trusting, token=token) as web:
        with pytest.raises(ForbiddenError):
            web.reserve(timeout=0)
        assert is_refused(for_certificates, trusting)
        trusting.load_cert_chain(etc / "worker.pem", etc / "worker.key")
        with Client(for_certificates, watch="thumbnails", tls=trusting) as worker:
            before = (etc / "server.pem").read_text()
            served = ssl.get_server_certificate(for_tokens)
            recipe.run()
            assert (etc / "server.pem").read_text() != before
            eventually(lambda: ssl.get_server_certificate(for_tokens) != served, "the new certificate is served")
            web.put("dog.jpeg")
            assert worker.reserve(timeout=60).body == "dog.jpeg"


@pytest.mark.slow
def test_many_teams(follow):
    recipe = follow("Many teams", page=PAGE)
    recipe.write()
    recipe.run()
    recipe.serve()
    assert recipe.run_program() == "not ours\n"

    def token_of(user):
        return (recipe.configuration / f"{user}.secret").read_text().strip()

    def connect(user, **keywords):
        return Client(("127.0.0.1", recipe.ports["11301"]), token=token_of(user), **keywords)

    with (
        connect("billing-worker", watch="billing-invoices") as worker,
        connect("mail", use="mail-inbox", watch="mail-inbox") as mail,
        connect("operator") as operator,
    ):
        assert worker.reserve(timeout=60).body == "an invoice to write"
        assert mail.peek_ready().body == "an invoice to send"
        with pytest.raises(beanstalk_client.NotFoundError):
            mail.stats_job(2)
        with pytest.raises(beanstalk_client.NotFoundError):
            worker.delete(1)
        assert set(mail.tubes()) == {"mail-inbox"}
        assert {"mail-inbox", "billing-invoices", "default"} <= set(operator.tubes())
        assert operator.stats_tube("billing-invoices")["current-jobs-reserved"] == 1
        operator.pause_tube("mail-inbox", 0)
        for refused in (lambda: operator.reserve(timeout=0), lambda: operator.delete(1), lambda: operator.put("x")):
            with pytest.raises(ForbiddenError):
                refused()

        with connect("billing-web") as web:
            for private in ("billing-invoices.results", "billing-invoices.errors"):
                worker.use(private)
                with pytest.raises(ForbiddenError):
                    web.use(private)

        old = token_of("mail")
        recipe.run()
        assert token_of("mail") != old
        eventually(lambda: can_connect(lambda: connect("mail")), "the new token is known")
        with pytest.raises(UnauthorizedError):
            Client(("127.0.0.1", recipe.ports["11301"]), token=old)
        assert mail.reserve(timeout=0).body == "an invoice to send"


@pytest.mark.slow
def test_a_proxy_in_front(follow):
    programs.find("haproxy")
    recipe = follow("A proxy in front", page=PAGE)
    recipe.run()
    recipe.write()
    recipe.write("")
    recipe.run()
    recipe.serve()
    recipe.serve_proxy("11301")
    recipe.run_program()

    etc = recipe.configuration
    trusting = strict(etc / "ca.pem")
    address = ("localhost", recipe.ports["11301"])
    assert is_refused(address, trusting)
    trusting.load_cert_chain(etc / "worker.pem", etc / "worker.key")
    with Client(address, use="thumbnails", tls=trusting) as queue:
        assert queue._connection._sock.selected_alpn_protocol() == "beanstalk"
        with pytest.raises(ForbiddenError):
            queue.use("billing")
        host, port = queue._connection._sock.getsockname()[:2]
        eventually(
            lambda: f"{host}:{port}" in recipe.server.log, "the log has the address of the client behind the proxy"
        )
        assert "thumbnailer" in recipe.server.log
    with socket.socket(socket.AF_UNIX) as past_the_proxy:
        past_the_proxy.settimeout(60)
        past_the_proxy.connect(recipe.of_this_machine("/run/beanstalk/proxy"))
        past_the_proxy.sendall(b"put 0 0 1 1\r\nx\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert past_the_proxy.recv(100) == b""


@pytest.mark.slow
def test_moving_from_an_open_beanstalkd_without_a_stop(follow):
    recipe = follow("Moving from an open beanstalkd without a stop", page=PAGE)
    recipe.write()
    recipe.run()
    recipe.serve()
    recipe.run_program()
    recipe.run_program()

    etc = recipe.configuration
    trusting = strict(etc / "server.pem")
    token = (etc / "shop.secret").read_text().strip()
    old, new = (("localhost", recipe.ports[port]) for port in ("11300", "11301"))
    assert "legacy" in recipe.server.log
    with (
        greenstalk.Client(old, use="orders") as legacy,
        Client(new, watch="orders", tls=trusting, token=token) as shop,
    ):
        legacy.put("before")
        recipe.run()
        eventually(lambda: not can_connect(lambda: greenstalk.Client(old)), "the open listener is gone")
        legacy.put("after")
        assert [shop.reserve(timeout=60).body for _ in range(2)] == ["before", "after"]
        recipe.run()
        assert is_closed(legacy)
        with pytest.raises(beanstalk_client.TimedOutError):
            shop.reserve(timeout=0)


def test_the_example_of_tls_and_a_token(follow, open_path):
    recipe = follow("Try TLS and a token", page=ROOT / "docs" / "access.md")
    recipe.run()
    recipe.serve()
    recipe.run_program()
    with pytest.raises(UnauthorizedError):
        Client(("localhost", recipe.ports["11301"]), tls=strict(open_path / "server.pem"), token="nobodys")


def test_the_page_says_what_is_replaced():
    """All that `Recipe` puts in the place of something else is in the table."""
    table = PAGE.read_text().split("| here | in the test |")[1].split("\n\n")[0]
    for each in (*DIRECTORIES, PORTS[0], PORTS[-1], "queue.example.com", "0.0.0.0", "`shop`", "`haproxy`", "$SERVER"):
        assert each in table
