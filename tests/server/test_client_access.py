"""The client of this package where a server asks who is there: TLS, certificates, tokens, and what it may not do."""

import socket
import ssl
import traceback

import beanstalk_client
import pytest
import trustme
from beanstalk_client import Client, ForbiddenError, UnauthorizedError

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig

TOKEN = new_token()
MAIL = UserConfig(name="mail", token_sha256=(hash_of_token(TOKEN),), produce=("mail-*",), consume=("mail-*",))


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    """The certificate of a server that is called queue.example, its key, and the authority, as files."""
    paths = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "authority")}
    issued = authority.issue_cert("queue.example", "127.0.0.1")
    issued.private_key_pem.write_to_path(paths["key"])
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(paths["certificate"], append=number > 0)
    authority.cert_pem.write_to_path(paths["authority"])
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def trusting(authority):
    """A context that trusts the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def server(run, files):
    """A server that asks for TLS and a token."""

    def start(users=(MAIL,), **keywords):
        listener = {
            "address": "127.0.0.1:0",
            "tls_cert": files["certificate"],
            "tls_key": files["key"],
            "auth": "token",
        }
        return run(listeners=(ListenerConfig(**(listener | keywords)),), users=users)

    return start


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_a_client_with_a_token_works_in_its_tubes(server, trusting, encoding):
    body = "hello" if encoding else b"hello"
    with Client(server().address, encoding, "mail-out", "mail-out", tls=trusting, token=TOKEN) as queue:
        queue.put(body)
        queue.put_keyed("k", body, delay=100)
        job = queue.reserve(timeout=60)
        assert job.body == body
        queue.delete(job)
        queue.cancel_keyed("k")


def test_what_a_user_may_not_do_is_an_error_of_its_own_and_the_connection_goes_on(server, trusting):
    with Client(server().address, use="mail-out", watch="mail-out", tls=trusting, token=TOKEN) as queue:
        for refused in (lambda: queue.use("bill"), lambda: queue.watch("bill"), queue.stats, lambda: queue.kick(1)):
            with pytest.raises(ForbiddenError):
                refused()
        assert queue.put("still here") == 1
    with pytest.raises(ForbiddenError):
        Client(server().address, use="bill", tls=trusting, token=TOKEN)


def test_a_token_that_the_server_does_not_know_is_an_error_that_does_not_show_it(server, trusting):
    wrong = new_token()
    with pytest.raises(UnauthorizedError) as refused:
        Client(server().address, tls=trusting, token=wrong)
    assert wrong not in "".join(traceback.format_exception(refused.value)) + repr(refused.value)


def test_without_a_token_the_first_command_is_an_error(server, trusting):
    with Client(server().address, tls=trusting) as queue, pytest.raises(UnauthorizedError):
        queue.put("x")


def test_a_server_that_asks_for_no_token_says_that_it_does_not_know_the_command(run):
    with pytest.raises(beanstalk_client.UnknownCommandError):
        Client(run().address, token=TOKEN)


@pytest.mark.parametrize("token", ["mine is two words", "of-two\r\nlines", "schön-und-geheim", "mine-with-a-line\n"])
def test_what_cannot_be_a_token_is_refused_before_it_is_sent_and_not_shown(token):
    with pytest.raises(ValueError, match="one word") as refused:
        Client(("127.0.0.1", 1), token=token)
    assert token.strip() not in "".join(traceback.format_exception(refused.value))


def test_a_client_does_not_keep_its_token(server, trusting):
    address = server().address
    with Client(address, tls=trusting, token=TOKEN) as queue:
        assert repr(queue) == f"beanstalk_client.Client({address[0]}:{address[1]})"
        assert TOKEN not in repr(vars(queue))


def test_the_name_of_the_server_is_that_of_its_address_unless_another_one_is_given(server, trusting):
    address = server().address
    Client(address, tls=trusting, token=TOKEN).close()
    Client(address, tls=trusting, server_name="queue.example", token=TOKEN).close()
    for bad in ({"server_name": "other.example"}, {"tls": ssl.create_default_context()}):
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(address, **({"tls": trusting, "token": TOKEN} | bad))


def test_true_stands_for_the_authorities_of_the_system_and_says_that_it_speaks_beanstalk(server, files, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", files["authority"])
    with Client(server().address, tls=True, token=TOKEN) as queue:
        assert queue._connection._sock.selected_alpn_protocol() == "beanstalk"


def test_a_certificate_says_who_a_client_is(server, files, authority, trusting):
    address = server(auth="certificate", tls_client_ca=files["authority"]).address
    authority.issue_cert("mail").configure_cert(trusting)
    with Client(address, use="mail-out", tls=trusting) as queue:
        assert queue.put("hello") == 1
        with pytest.raises(ForbiddenError):
            queue.use("bill")


def test_a_token_on_a_unix_socket_and_on_a_socket_that_is_connected_already(server, tmp_path):
    path = str(tmp_path / "socket")
    server(address=f"unix:{path}", tls_cert="", tls_key="")
    with Client(path, use="mail-out", token=TOKEN) as queue:
        assert queue.put("hello") == 1
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    with Client(sock, use="mail-out", token=TOKEN) as queue:
        assert queue.put("hello") == 2


def test_a_server_that_is_not_there_leaves_nothing_open(tmp_path):
    for address in (str(tmp_path / "nowhere"), ("127.0.0.1", 1)):
        with pytest.raises(OSError, match=r"refused|No such file"):
            Client(address, tls=True, server_name="queue.example", token=TOKEN)
