"""Reads a listener's certificate, its key and its authorities, and makes OpenSSL's context of them.

    minimum       TLS 1.2: what is older is broken (RFC 8996), and every client of the last ten years can do better
    ciphers       Python's, which are OpenSSL's at security level 2 without what has no forward secrecy: they follow
                  what these two learn, as a list of our own would not
    off           compression (CRIME); renegotiation, with which a client could make a server work for nothing
    clients       must have a certificate if the listener has authorities for them, and need none otherwise
    tickets       one for each handshake of TLS 1.3, where OpenSSL issues two. One costs a tenth of a handshake with a
                  client's certificate; a client that comes back with it costs half of one, and gets the next. For a
                  client of TLS 1.2 that takes no ticket, OpenSSL keeps the session, up to 20,480: 1 kB each, 12 with a
                  certificate. Python cannot turn that off

A reload makes a new context. One in use is never changed: a file that is bad would leave half of it behind. Tickets of
an earlier context are worth nothing, so a client that is refused now cannot come back with one.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable
from typing import Final, NoReturn

from beanstalk_server.events import event
from beanstalk_server.server.front.client_hello import PROTOCOL
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.files import LARGEST_FILE, TOO_LONG, read_file
from beanstalk_server.settings.sections import ListenerConfig

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b" PRIVATE KEY-----"

log = logging.getLogger("beanstalk_server")


def same_path(path: str) -> str:
    """Where a file is: at its path."""
    return path


def log_warning(warning: str) -> None:
    """Log what is doubtful about a certificate."""
    log.warning("%(warning)s", event("certificate-warning", warning=warning))


def make_context(
    listener: ListenerConfig, warn: Callable[[str], object] = log_warning, place: Callable[[str], str] = same_path
) -> ssl.SSLContext:
    """The context of a listener with a certificate.

    Args:
        warn: called with a warning about a certificate that clients will refuse, such as an expired one.
        place: where a file is to be read, of the path that messages name.

    Raises:
        StartError: a file cannot be read or used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 1
    context.set_alpn_protocols([PROTOCOL.decode()])
    _load_certificate(context, listener.tls_cert, listener.tls_key, warn, place)
    if listener.tls_client_ca:
        _load_authorities(context, listener.tls_client_ca, place)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(
    context: ssl.SSLContext, path: str, key_path: str, warn: Callable[[str], object], place: Callable[[str], str]
) -> None:
    certificate = _read("tls-cert", path, place)
    if _CERTIFICATE not in certificate:
        _refuse("tls-cert", path, "contains no PEM certificate")
    name, key_path = ("tls-key", key_path) if key_path else ("tls-cert", path)
    if _KEY not in (_read(name, key_path, place) if key_path != path else certificate):
        _refuse(name, key_path, "contains no PEM private key")
    if not _is_certificate(certificate):  # as it was read: the file may be written at this moment
        _refuse("tls-cert", path, "the certificate is damaged")
    try:
        context.load_cert_chain(place(path), place(key_path), _no_password)
    except _EncryptedError:
        _refuse(name, key_path, "the key is encrypted, which is not supported: decrypt it with openssl pkey")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _refuse(name, key_path, f"does not match the certificate in {path}")
        _refuse(name, key_path, f"cannot be used: {_words_of(error)}")
    except OSError as error:
        _refuse(name, key_path, error.strerror or str(error))
    _check_certificate(context, path, certificate, warn)


def _load_authorities(context: ssl.SSLContext, path: str, place: Callable[[str], str]) -> None:
    if _CERTIFICATE not in _read("tls-client-ca", path, place):
        _refuse("tls-client-ca", path, "contains no PEM certificate")
    try:
        context.load_verify_locations(place(path))
    except ssl.SSLError as error:
        _refuse("tls-client-ca", path, f"cannot be used: {_words_of(error)}")


def _read(name: str, path: str, place: Callable[[str], str]) -> bytes:
    """What a file has: OpenSSL would not say which one it cannot open, and would wait at a pipe."""
    try:
        where = place(path)
        if stat.S_ISFIFO(os.stat(where).st_mode):
            _refuse(name, path, "is a pipe, which can be read only once: must be a file")
        content = read_file(where)
    except (OSError, ValueError) as error:
        _refuse(name, path, getattr(error, "strerror", "") or str(error))
    if len(content) > LARGEST_FILE:
        _refuse(name, path, TOO_LONG)
    return content


def _refuse(name: str, path: str, reason: str) -> NoReturn:
    raise StartError(f"{name} {path}: {reason}") from None


class _EncryptedError(Exception):
    """OpenSSL asks for a password."""


def _no_password() -> str:
    """Keep OpenSSL from asking on the terminal."""
    raise _EncryptedError


def _words_of(error: ssl.SSLError) -> str:
    return (error.reason or "no reason given").lower().replace("_", " ")


def _is_certificate(pem: bytes) -> bool:
    """Whether the first certificate of a file can be read."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_first(pem))
    except (ssl.SSLError, ValueError):
        return False
    return True


def _first(pem: bytes) -> bytes:
    """The first certificate of a file, in DER."""
    text = pem[pem.index(_CERTIFICATE) :].decode("ascii", "replace")
    end = text.find(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(text[: end + len(ssl.PEM_FOOTER)])


def _check_certificate(context: ssl.SSLContext, path: str, pem: bytes, warn: Callable[[str], object]) -> None:
    """Let a client of our own, which trusts this certificate, look at it: Python cannot read when one is valid."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=_first(pem))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for each in (client, server, client):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            warn(f"tls-cert {path}: clients will refuse it: {getattr(error, 'verify_message', _words_of(error))}")
            return
