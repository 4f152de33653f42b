"""The client of this package at a server with TLS: the name of the server, and the authorities of the system."""

import ssl

import pytest
from beanstalk_client import Client
from tls_peers import Files, client_context


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def address(run, files):
    """Where a server answers whose certificate names localhost and 127.0.0.1."""
    return run(listeners=(files.listener(),)).address


def test_the_name_of_the_server_is_that_of_its_address_unless_another_one_is_given(address):
    Client(address, tls=client_context()).close()
    Client(address, tls=client_context(), server_name="localhost").close()
    for bad in ({"server_name": "other.example"}, {"tls": ssl.create_default_context()}):
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(address, **({"tls": client_context()} | bad))


def test_true_stands_for_the_authorities_of_the_system_and_says_that_it_speaks_beanstalk(address, files, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", files.ca)
    with Client(address, tls=True) as queue:
        assert queue._connection._sock.selected_alpn_protocol() == "beanstalk"
