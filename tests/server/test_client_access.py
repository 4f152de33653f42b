"""The client of this package where a server asks for a user: no token, the name of the server, and certificates."""

import ssl

import pytest
import trustme
from beanstalk_client import Client

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
