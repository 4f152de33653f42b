"""A listener's files: what is made of them, and what is said about those that cannot be used."""

import logging
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tls_peers import DAY, TODAY, Files, TlsClient, authority

from beanstalk_server.server.front import tls_context
from beanstalk_server.server.front.tls_context import make_context
from beanstalk_server.server.start_error import StartError


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def refused(listener):
    with pytest.raises(StartError) as caught:
        make_context(listener)
    assert caught.value.status == 111
    assert "\n" not in str(caught.value)
    return str(caught.value)


def content(path):
    return Path(path).read_bytes()


def damaged(pem):
    """A file whose first bytes say something else than what it is."""
    first, rest = pem.split(b"\n", 1)
    return first + b"\nAAAA" + rest[4:]


def encrypted(path):
    key = serialization.load_pem_private_key(content(path), None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


def test_a_context_takes_nothing_older_than_tls_1_2_and_has_no_compression_and_no_renegotiation(files):
    context = files.context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION and context.options & ssl.OP_NO_RENEGOTIATION
    assert context.num_tickets == 1
    assert context.security_level >= 2
    assert not [cipher for cipher in context.get_ciphers() if cipher["auth"] == "auth-null" or "RC4" in cipher["name"]]


def test_a_file_that_is_far_too_large_is_refused(files):
    listener = files.listener()
    Path(listener.tls_cert).write_bytes(b"\n" * (4 << 20) + content(listener.tls_cert))
    assert refused(listener) == f"tls-cert {listener.tls_cert}: too long: must be at most 4194304 bytes"


def test_clients_need_a_certificate_where_there_are_authorities_for_them(files):
    assert files.context().verify_mode is ssl.CERT_NONE
    assert files.context(mutual=True).verify_mode is ssl.CERT_REQUIRED


def test_the_key_may_be_in_the_file_of_the_certificate(files):
    both = files.write("both.pem", content(files.key), content(files.cert))
    context = make_context(files.listener(tls_cert=both, tls_key=""))
    server, client = ssl.MemoryBIO(), TlsClient()
    server.write(client.hello())
    answer = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(server, answer, server_side=True).do_handshake()
    client.give(answer.read())
    assert client.connected


OPTIONS = ("tls_cert", "tls_key", "tls_client_ca")
NO_CERTIFICATE, NO_KEY = "contains no PEM certificate", "contains no PEM private key"
DAMAGED = "the certificate is damaged"


@pytest.mark.parametrize(
    ("option", "make", "said"),
    [
        *[(option, lambda files: str(files.directory / "gone"), "No such file or directory") for option in OPTIONS],
        ("tls_cert", lambda files: str(files.directory), "Is a directory"),
        ("tls_cert", lambda files: files.write("other", b"hello"), NO_CERTIFICATE),
        ("tls_client_ca", lambda files: files.write("other", b"hello"), NO_CERTIFICATE),
        ("tls_cert", lambda files: files.key, NO_CERTIFICATE),
        ("tls_key", lambda files: files.cert, NO_KEY),
        ("tls_key", lambda files: files.write("encrypted.key", encrypted(files.key)), "the key is encrypted"),
        ("tls_cert", lambda files: files.write("bad.pem", damaged(content(files.cert))), DAMAGED),
        ("tls_cert", lambda files: files.write("cut.pem", content(files.cert)[:200]), DAMAGED),
        ("tls_client_ca", lambda files: files.write("bad.pem", damaged(content(files.cert))), ""),
        ("tls_key", lambda files: files.write("bad.key", damaged(content(files.key))), "cannot be used: "),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(files, option, make, said):
    path = make(files)
    assert refused(files.listener(**{option: path})).startswith(f"{option.replace('_', '-')} {path}: {said}")


def test_a_certificate_without_a_key_or_with_that_of_another_is_named(files):
    assert refused(files.listener(tls_key="")) == f"tls-cert {files.cert}: {NO_KEY}"
    other = files.write("other.key", authority("ours").issue_cert("other").private_key_pem.bytes())
    said = f"tls-key {other}: does not match the certificate in {files.cert}"
    assert refused(files.listener(tls_key=other)) == said


def test_a_certificate_that_is_written_while_it_is_read_is_damaged(files, monkeypatch):
    def read_early(path):
        return content(path)[: 200 if path == files.cert else None]

    monkeypatch.setattr(tls_context, "read_file", read_early)
    assert refused(files.listener()) == f"tls-cert {files.cert}: the certificate is damaged"


def test_nothing_of_a_key_is_in_a_message(files):
    key = content(files.key)
    bad = files.write("bad.key", damaged(key))
    said = refused(files.listener(tls_key=bad))
    assert not any(line.decode() in said for line in key.splitlines()[1:-1])


@pytest.mark.parametrize("kind", list(trustme.KeyType))
@pytest.mark.parametrize(
    ("begins", "ends", "warning"),
    [
        (TODAY - DAY, TODAY + DAY, ""),
        (TODAY - 9 * DAY, TODAY - 2 * DAY, "clients will refuse it: certificate has expired"),
        (TODAY + DAY, TODAY + 2 * DAY, "clients will refuse it: certificate is not yet valid"),
        (TODAY - DAY, TODAY + 40_000 * DAY, ""),  # after 2050, it is written otherwise
    ],
    ids=["valid", "expired", "not yet", "for a hundred years"],
)
def test_a_certificate_that_is_not_valid_today_is_used_with_a_warning(tmp_path, caplog, kind, begins, ends, warning):
    with caplog.at_level(logging.WARNING):
        files = Files(tmp_path, not_before=begins, not_after=ends, key_type=kind)
        files.context()
    said = " ".join(caplog.messages)
    assert said == (f"tls-cert {files.cert}: {warning}" if warning else "")


@pytest.mark.parametrize(
    ("curve", "purpose", "warning"),
    [
        (ec.SECP256R1(), x509.ExtendedKeyUsageOID.SERVER_AUTH, ""),
        (ec.SECP256R1(), x509.ExtendedKeyUsageOID.CLIENT_AUTH, "unsuitable certificate purpose"),
        (ec.BrainpoolP256R1(), x509.ExtendedKeyUsageOID.SERVER_AUTH, "no shared cipher"),
    ],
    ids=["good", "of a client", "on a curve that clients do not offer"],
)
def test_a_certificate_with_which_no_client_connects_is_warned_of(files, caplog, curve, purpose, warning):
    key = ec.generate_private_key(curve)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, TODAY - DAY, TODAY + DAY)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    path = files.write("other.pem", pem)
    make_context(files.listener(tls_cert=path, tls_key=""))
    assert caplog.messages == ([f"tls-cert {path}: clients will refuse it: {warning}"] if warning else [])
