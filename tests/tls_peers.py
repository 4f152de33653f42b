"""Certificates for tests, and a TLS client without a socket: bytes in, bytes out."""

import contextlib
import functools
import ssl
from datetime import UTC, datetime, timedelta

import trustme

from beanstalk_server.server.front.tls_context import make_context
from beanstalk_server.settings.sections import ListenerConfig
from conformance.address import connect
from harness.caller import Caller

DAY = timedelta(days=1)
TODAY = datetime.now(UTC)


@functools.cache
def authority(name):
    """An authority; another name, another authority."""
    return trustme.CA(organization_name=name)


@functools.cache
def client_certificate(*names, common_name=None, by="ours", expires=TODAY + 30 * DAY):
    return authority(by).issue_cert(*names, common_name=common_name, not_after=expires)


class Files:
    """Files of a server's certificate, its key and an authority in a directory."""

    def __init__(self, directory, **keywords):
        self.directory = directory
        certificate = authority("ours").issue_cert("localhost", "127.0.0.1", **keywords)
        self.cert = self.write("server.pem", *[blob.bytes() for blob in certificate.cert_chain_pems])
        self.key = self.write("server.key", certificate.private_key_pem.bytes())
        self.ca = self.write("clients.pem", authority("ours").cert_pem.bytes())

    def write(self, name, *contents):
        path = self.directory / name
        path.write_bytes(b"".join(contents))
        return str(path)

    def keys(self, *, mutual=False):
        """The keys of a listener that speaks TLS; mutual: and asks for certificates."""
        return {"tls_cert": self.cert, "tls_key": self.key} | ({"tls_client_ca": self.ca} if mutual else {})

    def listener(self, *, mutual=False, **settings):
        return ListenerConfig(**{"address": "127.0.0.1:0"} | self.keys(mutual=mutual) | settings)

    def context(self, *, mutual=False):
        return make_context(self.listener(mutual=mutual))


def client_context(certificate=None, *, trusts="ours", version=None, alpn=()):
    """What a client trusts, and shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority(trusts).configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


class TlsCaller(Caller):
    """A Caller over TLS. A connection that ends without a close_notify is an error.

    Args:
        header: what is sent before the handshake.
    """

    def __init__(self, address, context=None, header=b""):
        plain = connect(address)
        try:
            plain.sendall(header)
            self.socket = (context or client_context()).wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            )
        except BaseException:
            plain.close()
            raise
        self._file = self.socket.makefile("rb")


class TlsClient:
    """OpenSSL's client, on memory.

    Attributes:
        received: what it has decrypted.
        ended: it has got a close_notify.
        error: why TLS has failed, if it has.
    """

    def __init__(self, context=None, session=None):
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or client_context()).wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost", session=session
        )
        self.connected = False
        self.received = b""
        self.ended = False
        self.error = None

    def hello(self):
        """What it begins with."""
        self.give(b"")
        return self.take()

    def take(self):
        """What it wants to send."""
        return self._outgoing.read()

    def give(self, data):
        """Let it have received these bytes."""
        if data:
            self._incoming.write(data)
        try:
            if not self.connected:
                self.tls.do_handshake()
                self.connected = True
            while piece := self.tls.read(1 << 16):
                self.received += piece
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self.error = error.reason or str(error)

    def write(self, data):
        """Encrypt these bytes, in as many records as it takes; return them encrypted."""
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
        return self.take()

    def close_notify(self):
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self.take()


def records(data):
    """Split bytes into whole records."""
    found = []
    while data:
        size = 5 + int.from_bytes(data[3:5], "big")
        found.append(data[:size])
        data = data[size:]
    return found
