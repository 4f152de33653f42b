"""Reads a listener's certificate, its key and its authorities, and makes OpenSSL's context of them.

    minimum       TLS 1.2: what is older is broken (RFC 8996), and every client of the last ten years can do better
    ciphers       Python's, which are OpenSSL's at security level 2 without what has no forward secrecy: they follow
                  what these two learn, as a list of our own would not
    off           compression (CRIME); renegotiation, with which a client could make a server work for nothing
    clients       must have a certificate if the listener has authorities for them, and need none otherwise
    tickets       one for each handshake of TLS 1.3, where OpenSSL issues two. One costs a tenth of a handshake with a
                  client's certificate; a client that comes back with it costs half of one, and gets the next

A reload makes a new context. One in use is never changed: a file that is bad would leave half of it behind. Tickets of
an earlier context are worth nothing, so whoever is not let in any more cannot come back with one.

Must never know connections, or who is let in.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, NoReturn

from beanstalk_server.config import ListenerConfig
from beanstalk_server.server.client_hello import PROTOCOL
from beanstalk_server.server.start_error import StartError

STATUS: Final = 111
"""The exit status when a file cannot be used, as for a socket."""

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_KEY: Final = b" PRIVATE KEY-----"

log = logging.getLogger("beanstalk_server")


def make_context(listener: ListenerConfig, warn: Callable[[str], object] = log.warning) -> ssl.SSLContext:
    """The context of a listener with a certificate.

    Args:
        warn: is told of a certificate that is expired, or not valid yet.

    Raises:
        StartError: a file cannot be read or used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 1
    context.set_alpn_protocols([PROTOCOL.decode()])
    _load_certificate(context, listener.tls_cert, listener.tls_key, warn)
    if listener.tls_client_ca:
        _load_authorities(context, listener.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, path: str, key_path: str, warn: Callable[[str], object]) -> None:
    certificate = _read("tls-cert", path)
    if _CERTIFICATE not in certificate:
        _refuse("tls-cert", path, "has no certificate in PEM")
    name, key_path = ("tls-key", key_path) if key_path else ("tls-cert", path)
    if _KEY not in (_read(name, key_path) if key_path != path else certificate):
        _refuse(name, key_path, "has no private key in PEM")
    try:
        context.load_cert_chain(path, key_path, _no_password)
    except _EncryptedError:
        _refuse(name, key_path, "the key is encrypted, and nobody can be asked for its password; openssl pkey decrypts")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            _refuse(name, key_path, f"is not the key of the certificate in {path}")
        if _is_certificate(certificate):
            _refuse(name, key_path, f"cannot be used: {_words_of(error)}")
        _refuse("tls-cert", path, "its certificate is damaged")
    except OSError as error:
        _refuse(name, key_path, error.strerror or str(error))
    _check_validity(path, certificate, warn)


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    if _CERTIFICATE not in _read("tls-client-ca", path):
        _refuse("tls-client-ca", path, "has no certificate in PEM")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        _refuse("tls-client-ca", path, f"cannot be used: {_words_of(error)}")


def _read(name: str, path: str) -> bytes:
    """What a file has: OpenSSL would not say which one it cannot open."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        _refuse(name, path, error.strerror or str(error))


def _refuse(name: str, path: str, reason: str) -> NoReturn:
    raise StartError(f"{name} {path}: {reason}", STATUS) from None


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


# When a certificate is valid: Python reads that of a peer only


def _check_validity(path: str, pem: bytes, warn: Callable[[str], object]) -> None:
    begins, ends = _validity(_first(pem))
    now = datetime.now(UTC)
    if now > ends:
        warn(f"tls-cert {path}: expired on {ends.date()}; clients will refuse it")
    elif now < begins:
        warn(f"tls-cert {path}: not valid before {begins}; clients will refuse it")


def _validity(der: bytes) -> tuple[datetime, datetime]:
    """From when and until when a certificate is valid (RFC 5280, section 4.1)."""
    at, _ = _content(der, 0)  # Certificate
    at, _ = _content(der, at)  # TBSCertificate
    if der[at] == 0xA0:  # version
        at = _behind(der, at)
    for _ in ("serialNumber", "signature", "issuer"):
        at = _behind(der, at)
    at, _ = _content(der, at)  # Validity
    return _time(der, at), _time(der, _behind(der, at))


def _time(der: bytes, at: int) -> datetime:
    start, end = _content(der, at)
    text = der[start:end].decode("ascii")
    if len(text) == len("YYMMDDhhmmssZ"):
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of a value begins, and where it ends."""
    size = der[at + 1]
    at += 2
    if size >= 0x80:  # its length has bytes of its own, so many
        count = size & 0x7F
        size = int.from_bytes(der[at : at + count], "big")
        at += count
    return at, at + size


def _behind(der: bytes, at: int) -> int:
    return _content(der, at)[1]
