"""An unmodified greenstalk, without TLS and `auth`, works with a server that requires them: docs/access-recipes.md.

With the real programs in between: stunnel, which speaks TLS for a client, and HAProxy, which speaks it for a server.
"""

import socket
import ssl

import greenstalk
import pytest
import trustme
from recipes import Recipe

from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness.servers import ROOT
from harness.waiting import eventually

MAIL = UserConfig(name="mail", produce=("mail-*",), consume=("mail-*",))

HAPROXY = """\
global
    log stdout format raw local0

defaults
    mode tcp
    log global
    option log-health-checks
    timeout connect 5s
    timeout client 1h
    timeout server 1h

frontend queue
    bind 127.0.0.1:11301 ssl crt /etc/beanstalk/server.pem ca-file /etc/beanstalk/ca.pem verify required
    default_backend queue

backend queue
    server queue 127.0.0.1:{port} send-proxy-v2-ssl-cn check inter 50ms
"""

CARELESS = HAPROXY.replace("verify required", "verify optional ca-ignore-err all crt-ignore-err all")
"""Lets everybody through, and says in the header whether the certificate is good."""


@pytest.fixture
def place(open_path):
    """Where the programs run: like a recipe, with an authority, and certificates of a server and of some clients."""
    place = Recipe("Clients without TLS and `auth`", open_path, page=ROOT / "docs" / "access-recipes.md")
    ours, strange = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(place.configuration / "ca.pem"))
    for authority, file, name in (
        (ours, "server", "localhost"),
        (ours, "worker", "mail"),
        (ours, "nobody", "nobody"),
        (strange, "stranger", "mail"),
    ):
        issued = authority.issue_cert(name, common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(str(place.configuration / f"{file}.pem"))
        issued.private_key_pem.write_to_path(str(place.configuration / f"{file}.key"))
    yield place
    place.end()


def through_haproxy(place, run, settings=HAPROXY):
    """A server behind HAProxy; the address of the latter."""
    listener = ListenerConfig(address="127.0.0.1:0", auth="certificate", proxy_protocol=True, trusted=("127.0.0.0/8",))
    server = run(listeners=(listener,), users=(MAIL,))
    (place.configuration / "haproxy.cfg").write_text(place.of_this_machine(settings.format(port=server.address[1])))
    haproxy = place.serve_proxy("11301", "haproxy -f /etc/beanstalk/haproxy.cfg")
    eventually(lambda: "succeeded" in haproxy.log, "HAProxy has seen that the server is alive")
    return "localhost", place.ports["11301"]


def through_tls(place, run):
    """A server that speaks TLS itself; its address."""
    listener = ListenerConfig(
        address=place.of_this_machine("127.0.0.1:11302"),
        tls_cert=str(place.configuration / "server.pem"),
        tls_client_ca=str(place.configuration / "ca.pem"),
        auth="certificate",
    )
    return run(listeners=(listener,), users=(MAIL,)).address


def over_tls(place, address, certificate):
    """A connected socket that speaks TLS, with a certificate of this place or, if it is "", without one."""
    context = ssl.create_default_context(cafile=place.configuration / "ca.pem")
    if certificate:
        context.load_cert_chain(place.configuration / f"{certificate}.pem")
    return context.wrap_socket(socket.create_connection(address), server_hostname="localhost")


def check_what_mail_may(queue):
    """What the user `mail` may do, and what not."""
    queue.put("hello")
    job = queue.reserve(timeout=60)
    assert job.body == "hello"
    queue.touch(job)
    queue.release(job)
    queue.delete(queue.reserve(timeout=60))
    for refused in (lambda: queue.use("bill"), lambda: queue.watch("bill"), queue.stats):
        with pytest.raises(greenstalk.UnknownResponseError, match="FORBIDDEN"):
            refused()
    large = "x" * 60_000
    queue.put(large)
    assert queue.reserve(timeout=60).body == large


@pytest.mark.slow
@pytest.mark.parametrize("with_haproxy", [False, True])
def test_through_stunnel_a_client_has_the_name_in_its_certificate(place, run, with_haproxy):
    if with_haproxy:
        _, place.ports["11302"] = through_haproxy(place, run)
    else:
        through_tls(place, run)
    place.write("")
    place.serve_proxy("11303", "stunnel4 /etc/beanstalk/stunnel.conf")
    with greenstalk.Client(("127.0.0.1", place.ports["11303"]), use="mail-out", watch="mail-out") as queue:
        check_what_mail_may(queue)


def test_a_socket_that_speaks_tls_already(place, run):
    sock = over_tls(place, through_tls(place, run), "worker")
    with greenstalk.Client(sock, use="mail-out", watch="mail-out") as queue:
        check_what_mail_may(queue)


def put_one(place, address, certificate):
    with over_tls(place, address, certificate) as sock, greenstalk.Client(sock, use="mail-out") as queue:
        queue.put("x")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [HAPROXY, CARELESS], ids=["verified", "not verified"])
def test_a_name_is_believed_if_haproxy_has_verified_it(place, run, caplog, settings):
    """Of another authority, with a name that is no user's, and without a certificate."""
    address = through_haproxy(place, run, settings)
    put_one(place, address, "worker")
    assert "refused" not in caplog.text, "HAProxy may look whether the server is alive"
    for certificate in ("stranger", "nobody", ""):
        with pytest.raises((OSError, greenstalk.Error)):  # when and how the server refuses it, depends
            put_one(place, address, certificate)
