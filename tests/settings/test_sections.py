"""Settings that go together, that do not, and that are probably not meant."""

import pytest

from beanstalk_server import Config, ConfigError, ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.settings.warnings import warnings_of

HASH, ANOTHER = "ab" * 32, "cd" * 32


@pytest.mark.parametrize(
    "address",
    "127.0.0.1:1 127.3.2.1:1 localhost:1 LocalHost:beanstalk [::1]:1 [0:0:0:0:0:0:0:1]:1 [::1%lo]:1 "
    "[::ffff:127.0.0.1]:1 unix:/run/queue unix:queue".split(),
)
def test_tokens_need_no_tls_where_nothing_leaves_the_machine(address):
    assert ListenerConfig(address=address, auth="token").auth == "token"


@pytest.mark.parametrize(
    "address",
    "0.0.0.0:1 [::]:1 10.0.0.1:1 [fd00::1]:1 [::ffff:10.0.0.1]:1 [::ffff:0.0.0.0]:1 queue.example.org:1 "
    "localhost.example.org:1 ip6-loopback:1 127.1:1 0:1 *:1 localhost.:1 127.0.0.1%lo:1".split(),
)
def test_tokens_need_tls_where_others_may_read_them(address):
    with pytest.raises(ConfigError) as caught:
        ListenerConfig(address=address, auth="token")
    assert str(caught.value) == (
        f"auth: 'token' without TLS at {address!r}, where others could read the tokens: "
        "must have a tls-cert, or listen on a loopback address or a UNIX socket"
    )
    assert ListenerConfig(address=address, auth="token", tls_cert="c").address == address


def section_of(values):
    return TubeConfig(**values) if "match" in values else ListenerConfig(**({"address": "127.0.0.1:1"} | values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls_key": "k"}, "tls-key: 'k' without a certificate: tls-cert must name its file"),
        ({"tls_client_ca": "a"}, "tls-client-ca: 'a' without TLS: tls-cert must name the server's certificate"),
        (
            {"auth": "certificate", "tls_cert": "c"},
            "auth: 'certificate' without client certificates: "
            "must have a tls-client-ca, or proxy-protocol with a proxy that verifies certificates",
        ),
        ({"auth": "peer"}, "auth: 'peer' at '127.0.0.1:1': must listen on a UNIX socket, unix:PATH"),
        (
            {"auth": "peer", "address": "unix:/s", "proxy_protocol": True},
            "auth: 'peer' with proxy-protocol, where the proxy is the peer of every client: must be "
            "'certificate' or 'token'",
        ),
        (
            {"auth": "token", "user": "mail"},
            "user: 'mail' with auth = 'token': must be left out, or auth must be 'none'",
        ),
        (
            {"trusted": ("10.0.0.0/8",)},
            "trusted: ['10.0.0.0/8'] without PROXY headers: must have proxy-protocol = true",
        ),
        (
            {"trusted": ("10.0.0.0/8",), "proxy_protocol": True, "address": "unix:/s"},
            "trusted: ['10.0.0.0/8'] at 'unix:/s': must be left out; a UNIX socket has no network",
        ),
        (
            {"hosts": ("queue.svc",)},
            "hosts: ['queue.svc'] without HTTP: must have protocol = 'http', or be left out",
        ),
        (
            {"proxy_protocol": True},
            'proxy-protocol: true without trusted networks: must have trusted, such as ["127.0.0.0/8"]',
        ),
        (
            {"address": "0.0.0.0:9", "protocol": "http", "auth": "token"},
            "auth: 'token' without TLS at '0.0.0.0:9', where others could read the tokens: "
            "must have a tls-cert, or listen on a loopback address or a UNIX socket",
        ),
        ({"match": "mail", "burst": 2}, "burst: 2 without a rate: must be left out, or have a rate"),
        (
            {"match": "mail", "backoff": "1m", "backoff_max": 59.5},
            "backoff-max: 59.5 below the first delay: must be 60 or more",
        ),
        (
            {"match": ("mail", "mail-*"), "dead_tube": "mail"},
            "dead-tube must differ from match",
        ),
    ],
)
def test_what_does_not_go_together_in_a_section(values, said):
    with pytest.raises(ConfigError) as caught:
        section_of(values)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "values",
    [
        {"tls_cert": "c", "tls_client_ca": "a"},
        {"tls_cert": "c", "tls_client_ca": "a", "auth": "certificate"},
        {"proxy_protocol": True, "trusted": ("127.0.0.0/8", "fd00::/8"), "auth": "certificate"},
        {"address": "unix:/s", "auth": "peer"},
        {"address": "unix:/s", "proxy_protocol": True},
        {"match": ("*",), "backoff_max": 60},  # for jobs whose producers ask for a backoff
        {"match": ("*",), "dead_tube": "dead"},  # for those whose producers limit the tries
        {"match": ("*",), "backoff": 60, "backoff_max": 60},
        {"match": ("*",), "rate": "1/10s", "burst": 1_000_000},
    ],
)
def test_what_goes_together_in_a_section(values):
    section = section_of(values)
    assert {name: getattr(section, name) for name in values} == values


BAD_OF_A_LISTENER = {
    "address": [
        *("", "localhost", ":11300", "localhost:", "localhost:65536", "localhost:99999999999999", "::1:11300"),
        *("[]:11300", "unix:", "unix:a\0b", 11300),
    ],
    "tls_cert": [1],
    "tls_key": ["a\0b"],
    "auth": ["tokens", None, ["token"]],
    "user": ["a\nb"],
    "proxy_protocol": [1],
    "trusted": [["10.0.0.1/8"], ["10.0.0.0/33"], ["localhost"], [10]],
    "hosts": [["queue:80"], ["Queue"]],
}
BAD_OF_A_USER = {
    "name": ["", " mail", "a\nb", "x" * 201, 5],
    "token_sha256": [HASH[:-1], [HASH, "g" * 64], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
    "uid": [-1, 2**32 - 1, True, "no-such-user-here", "a\0b"],
    "produce": ["", ["mail", "a b"]],
    "consume": ["-mail"],
    "inspect": ["mail[", "mail[]", "{a,b}"],
    "admin": [5, "x" * 1001],
}


@pytest.mark.parametrize(
    ("kind", "good", "key", "value"),
    [
        (kind, good, key, value)
        for kind, good, bad in (
            (ListenerConfig, {"address": "127.0.0.1:1"}, BAD_OF_A_LISTENER),
            (UserConfig, {"name": "mail"}, BAD_OF_A_USER),
        )
        for key, values in bad.items()
        for value in values
    ],
)
def test_a_bad_value_of_a_section(kind, good, key, value):
    with pytest.raises(ConfigError, match=rf"^{key.replace('_', '-')}: bad value .*: must be ") as caught:
        kind(**(good | {key: value}))
    assert len(caught.value.mistakes) == 1


def test_a_single_value_is_a_list_of_it():
    user = UserConfig(name="mail", token_sha256=HASH.upper(), uid="root", produce="*", consume=["a", "[a-c]?*"])
    assert user == UserConfig(name="mail", token_sha256=(HASH,), uid=(0,), produce=("*",), consume=("a", "[a-c]?*"))
    assert hash(user)


def test_a_token_in_place_of_its_hash_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        UserConfig(name="mail", token_sha256=["my-own-token"])
    assert str(caught.value) == (
        "token-sha256: bad value (not shown, 12 characters): "
        "must be the 64 hexadecimal digits that `beanstalk-server token` prints"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_key": "k"}, ["--tls-key: 'k' without a certificate: tls-cert must name its file"]),
        (
            {"listen": "0.0.0.0", "token_file": "t"},
            [
                "--token-file: 'token' without TLS at '0.0.0.0:11300', where others could read the tokens: "
                "must have a tls-cert, or listen on a loopback address or a UNIX socket"
            ],
        ),
        (
            {"port": 1, "token_file": "t", "listeners": (ListenerConfig(address="h:1"),)},
            [
                "-p/--port: 1 with a [[listener]], which has its own: must be left out",
                "--token-file: 't' with a [[listener]], which has its own: must be left out",
            ],
        ),
        (
            {"listeners": (ListenerConfig(address="h:1", user="mail"), ListenerConfig(address="H:1"))},
            [
                "listener 1: user: 'mail' is unknown: must be the name of a [[user]]",
                "listener 2: address: duplicate 'H:1': listener 1 has it already",
            ],
        ),
        (
            {"listeners": (ListenerConfig(address="h:9", protocol="http"),)},
            ["listener: every listener has the protocol 'http': one must be for clients"],
        ),
        (
            {"http": "h:9", "listeners": (ListenerConfig(address="h:9"),)},
            ["--http: address: duplicate 'h:9': listener 1 has it already"],
        ),
        (
            {"listeners": (ListenerConfig(address="unix:/a/b"), ListenerConfig(address="unix:/a/./b"))},
            ["listener 2: address: duplicate 'unix:/a/./b': listener 1 has it already"],
        ),
        (
            {"listeners": (ListenerConfig(address="[::1]:1"), ListenerConfig(address="[0::1]:1"))},
            ["listener 2: address: duplicate '[0::1]:1': listener 1 has it already"],
        ),
        (
            {
                "users": (
                    UserConfig(name="mail", token_sha256=(HASH, HASH), uid=(1, 2)),
                    UserConfig(name="bill", token_sha256=(ANOTHER, HASH.upper()), uid=2),
                    UserConfig(name="mail"),
                )
            },
            [
                'duplicate user "mail"',
                'user "mail": token-sha256: duplicate token: user "mail" has it already',
                'user "bill": token-sha256: duplicate token: user "mail" has it already',
                'user "bill": uid: duplicate 2: user "mail" has it already',
            ],
        ),
    ],
)
def test_what_does_not_go_together_in_a_configuration(settings, said):
    with pytest.raises(ConfigError) as caught:
        Config(**settings)
    assert str(caught.value).split("\n") == said


def test_several_listeners_may_each_pick_a_free_port():
    listeners = (ListenerConfig(address="localhost:0"), ListenerConfig(address="localhost:0"))
    assert Config(listeners=listeners).listeners == listeners


def test_users_beside_an_open_listener_deserve_a_warning():
    users = (UserConfig(name="mail", token_sha256=HASH),)
    assert warnings_of(Config()) == warnings_of(Config(tls_cert="c")) == []
    assert warnings_of(Config(users=users)) == [
        "-l/--listen 127.0.0.1: every client of this listener has all rights, because neither auth nor user is set"
    ]
    listeners = (
        ListenerConfig(address="localhost:1", auth="token"),
        ListenerConfig(address="localhost:2", tls_cert="c", tls_client_ca="a"),
        ListenerConfig(address="localhost:3", user="mail"),
        ListenerConfig(address="unix:s"),
    )
    assert warnings_of(Config(users=users, listeners=listeners)) == [
        "listener 2: every client with a certificate has all rights, because neither auth nor user is set",
        "listener 4: every client of this listener has all rights, because neither auth nor user is set",
    ]


@pytest.mark.parametrize(
    ("listener", "reason"),
    [
        ({"auth": "token"}, "no [[user]] has a token-sha256"),
        ({"auth": "peer"}, "no [[user]] has a uid"),
        ({"auth": "certificate", "proxy_protocol": True}, "no [[user]] exists"),
    ],
)
def test_a_listener_that_no_client_can_use_deserves_a_warning(listener, reason):
    config = Config(listeners=(ListenerConfig(address="unix:s", **listener),))
    assert warnings_of(config) == [f"listener 1: no client can use it: auth is {listener['auth']!r}, and {reason}"]


OPEN = (
    "every client has all rights, because there are no users: "
    "should have users or a token file, or listen on a loopback address"
)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "queue.example.com"])
def test_a_listener_without_users_that_other_machines_reach_deserves_a_warning(host):
    address = f"{host}:11300"
    assert warnings_of(Config(listeners=(ListenerConfig(address=address),))) == [f"listener 1: {OPEN}"]
    name = host.strip("[]")
    assert warnings_of(Config(listen=name)) == [f"-l/--listen {name}: {OPEN}"]
    mutual = ListenerConfig(address=address, tls_cert="c", tls_client_ca="a")
    metrics = ListenerConfig(address=f"{host}:9113", protocol="http")
    assert warnings_of(Config(listeners=(mutual, metrics))) == []
    assert warnings_of(Config(listen=name, tls_cert="c", token_file="t")) == []


def test_a_listener_without_users_that_stays_on_this_machine_deserves_no_warning():
    for address in ("localhost:1", "127.0.0.1:1", "[::1]:1", "unix:s"):
        assert warnings_of(Config(listeners=(ListenerConfig(address=address),))) == []


def test_addresses_that_systemd_replaces_deserve_a_warning():
    ignored = "ignored, because systemd has opened the sockets (LISTEN_FDS)"
    config = Config(listen="0.0.0.0", sources={"listen": "BEANSTALK_SERVER_LISTEN"})
    at = config.listeners_at(["127.0.0.1:7"])
    assert warnings_of(config, at) == [f"BEANSTALK_SERVER_LISTEN 0.0.0.0: {ignored}"]
    config = Config()
    assert warnings_of(config, config.listeners_at(["127.0.0.1:7", "0.0.0.0:7"])) == [f"listener 0.0.0.0:7: {OPEN}"]
    config = Config(listeners=(ListenerConfig(address="0.0.0.0:1"), ListenerConfig(address="127.0.0.1:2")))
    at = config.listeners_at(["127.0.0.1:1", "127.0.0.1:2"])
    assert warnings_of(config, at) == [f"listener 1: address 0.0.0.0:1: {ignored}"]


def test_a_proxy_at_any_address_deserves_a_warning():
    listener = ListenerConfig(address="localhost:1", proxy_protocol=True, trusted=["10.0.0.0/8", "::/0"])
    assert warnings_of(Config(listeners=[listener])) == [
        "listener 1: accepts PROXY headers from all addresses, because trusted is ['10.0.0.0/8', '::/0']"
    ]


def test_a_key_that_others_read_deserves_a_warning(tmp_path):
    key = tmp_path / "key"
    key.touch()
    key.chmod(0o640)
    config = Config(tls_cert="c", tls_key=str(key))
    assert warnings_of(config) == []
    key.chmod(0o644)
    assert warnings_of(config) == [
        f"-l/--listen 127.0.0.1: every user of this machine can read the key in {key}: use chmod o-r"
    ]


@pytest.mark.parametrize(
    ("settings", "address", "host", "port", "path"),
    [
        ({}, "127.0.0.1:11300", "127.0.0.1", 11300, ""),
        ({"listen": "::1", "port": 0}, "[::1]:0", "::1", 0, ""),
        ({"listen": "fe80::1%eth0"}, "[fe80::1%eth0]:11300", "fe80::1%eth0", 11300, ""),
        ({"listen": "queue", "port": "beanstalk"}, "queue:beanstalk", "queue", "beanstalk", ""),
        ({"listen": "unix:/run/queue:1"}, "unix:/run/queue:1", "", 0, "/run/queue:1"),
        ({"listen": "[odd"}, "[[odd]:11300", "[odd", 11300, ""),
    ],
)
def test_without_sections_the_options_describe_one_listener(settings, address, host, port, path):
    (listener,) = Config(**settings).all_listeners()
    assert listener == ListenerConfig(address=address)
    assert (listener.host, listener.port, listener.path) == (host, port, path)


def test_certificates_and_tokens_make_that_one_listener_closed():
    config = Config(tls_cert="c", tls_key="k", tls_client_ca="a", token_file="t")
    assert config.all_listeners() == (
        ListenerConfig(address="127.0.0.1:11300", tls_cert="c", tls_key="k", tls_client_ca="a", auth="token"),
    )


def test_inherited_sockets_take_the_place_of_addresses():
    token = ListenerConfig(address="localhost:1", auth="token")
    open_one = ListenerConfig(address="unix:/s")
    config = Config(listeners=(token, open_one))
    assert config.listeners_at(["127.0.0.1:7", "unix:/t"]) == (
        ListenerConfig(address="127.0.0.1:7", auth="token"),
        ListenerConfig(address="unix:/t"),
    )
    assert Config().listeners_at(["h:1", "unix:/s"]) == (
        ListenerConfig(address="h:1"),
        ListenerConfig(address="unix:/s"),
    )


# Listeners for operators

HTTP = ListenerConfig(address="127.0.0.1:9", protocol="http")
CLIENTS = ListenerConfig(address="localhost:1")
WITH_TOKENS = ListenerConfig(address="localhost:1", auth="token")


def out_of_order(number, socket, section):
    return (
        f"LISTEN_FDS: socket {number} is at {socket!r}, and listener {number} at {section!r}: "
        "the sockets must be in the order of the [[listener]] sections"
    )


@pytest.mark.parametrize(
    ("sections", "sockets", "said"),
    [
        (["unix:/s", "h:1"], ["h:1", "unix:/s"], out_of_order(1, "h:1", "unix:/s")),
        (["h:1", "unix:/s"], ["h:1", "h:2"], out_of_order(2, "h:2", "unix:/s")),
        (["h:1", "h:2"], ["[::]:2", "[::]:1"], out_of_order(1, "[::]:2", "h:1")),
        (["h:1", "h:2"], ["[::]:7", "[::]:1"], out_of_order(2, "[::]:1", "h:2")),
        (["unix:/s", "unix:/t"], ["unix:/t", "unix:/s"], out_of_order(1, "unix:/t", "unix:/s")),
        ([HTTP, CLIENTS], ["0.0.0.0:1", "0.0.0.0:9"], out_of_order(1, "0.0.0.0:1", "127.0.0.1:9")),
        (
            [WITH_TOKENS],
            ["127.0.0.1:1", "127.0.0.1:2"],
            "LISTEN_FDS: bad value 2: must be 1, one socket for each [[listener]]",
        ),
        (
            [WITH_TOKENS],
            ["0.0.0.0:1"],
            "listener 1: auth: 'token' without TLS at '0.0.0.0:1', where others could read the tokens: "
            "must have a tls-cert, or listen on a loopback address or a UNIX socket",
        ),
    ],
)
def test_sockets_that_do_not_fit_the_sections_are_refused(sections, sockets, said):
    config = Config(listeners=[ListenerConfig(address=each) if isinstance(each, str) else each for each in sections])
    with pytest.raises(ConfigError) as caught:
        config.listeners_at(sockets)
    assert str(caught.value) == said


def test_the_option_for_operators_is_a_listener_more():
    assert Config(http="127.0.0.1:9").all_listeners() == (ListenerConfig(address="127.0.0.1:11300"), HTTP)
    assert Config(http="127.0.0.1:9", listeners=(CLIENTS,)).all_listeners() == (CLIENTS, HTTP)
    assert Config(http="[::1]:9").http_listener().host == "::1"
    assert Config(http="unix:/h").http_listener().path == "/h"
    assert Config().http_listener() is None


@pytest.mark.parametrize("value", ["9", ":9", "localhost", "h:70000", "::1:9", "unix:"])
def test_the_option_for_operators_is_an_address_with_a_port(value):
    with pytest.raises(ConfigError, match=r"^--http: bad value .*: must be host:port, "):
        Config(http=value)


def test_an_open_listener_for_metrics_beside_users_deserves_a_warning():
    clients = ListenerConfig(address="localhost:1", auth="token")
    user = UserConfig(name="mail", token_sha256=HASH)
    assert warnings_of(Config(http="[::1]:9", listeners=(clients,), users=(user,)))[0] == (
        "--http [::1]:9: every client of this listener can see all metrics, because neither auth nor user is set"
    )


@pytest.mark.parametrize(
    ("sections", "sockets", "expected"),
    [
        ((), ["127.0.0.1:1", "127.0.0.1:9"], ["beanstalk", "http"]),
        ((), ["[::]:9", "unix:/s"], ["http", "beanstalk"]),
        ((), ["127.0.0.1:1", "127.0.0.1:2"], ["beanstalk", "beanstalk", "http"]),
        ((CLIENTS,), ["127.0.0.1:1"], ["beanstalk", "http"]),
        (
            (ListenerConfig(address="h:8", protocol="http"), CLIENTS),
            ["[::]:8", "[::]:1"],
            ["http", "beanstalk", "http"],
        ),
        ((CLIENTS,), ["127.0.0.1:1", "127.0.0.1:8"], ["beanstalk", "http"]),
    ],
)
def test_a_socket_that_is_open_may_be_that_of_operators(sections, sockets, expected):
    found = Config(http="127.0.0.1:9", listeners=sections).listeners_at(sockets)
    assert [each.protocol for each in found] == expected
    assert [each.address for each in found][: len(sockets)] == sockets
    if len(found) > len(sockets):
        assert found[-1] == HTTP


def test_a_socket_must_be_left_for_clients():
    with pytest.raises(ConfigError, match=r"LISTEN_FDS: all sockets are at '127.0.0.1:9', the address of --http"):
        Config(http="127.0.0.1:9").listeners_at(["127.0.0.1:9"])


def test_what_the_log_shows_of_a_configuration_has_nothing_secret():
    config = Config(
        listeners=(ListenerConfig(address="localhost:1", auth="token"),),
        users=(UserConfig(name="mail", token_sha256=HASH),),
    )
    assert config.changed() == {"listeners": 1, "users": 1}
    assert HASH not in repr(config)
    assert hash(config) == hash(Config(listeners=list(config.listeners), users=list(config.users)))


@pytest.mark.parametrize(
    ("tubes", "said"),
    [
        (
            [{"match": "mail-*"}, {"match": "*"}, {"match": "default"}],
            ['tube "default": applies to no tube: its patterns are already covered by tube "*"'],
        ),
        (
            [{"match": ["a", "b"]}, {"match": "c"}, {"match": ["b", "c"], "ttl": 1}],
            ['tube "b", …: applies to no tube: its patterns are already covered by tube "a", … and tube "c"'],
        ),
        ([{"match": ["a", "b"]}, {"match": ["b", "c"]}], []),
        (
            [{"match": "a", "max_job_size": 65536}],
            ['tube "a": max-job-size 65536: the limit of the server is 65535 bytes (-z/--max-job-size)'],
        ),
        (
            [{"match": "a", "rate": "20000/s"}, {"match": "b", "rate": "4000/s"}, {"match": "c", "rate": "9000/s"}],
            [
                'tube "a": rate 20000/s with a burst of 1: the actual rate is lower, because timers run '
                "every 0.25 ms (--tick)"
                ": should have a burst of 5",
                'tube "c": rate 9000/s with a burst of 1: the actual rate is lower, because timers run '
                "every 0.25 ms (--tick)"
                ": should have a burst of 3",
            ],
        ),
        ([{"match": "a", "rate": "20000/s", "burst": 5}], []),
        (
            [{"match": "*", "dead_tube": "dead"}],
            [
                "tube \"*\": dead-tube: 'dead' has the same policy: should have its own [[tube]] before this one",
            ],
        ),
        ([{"match": "dead"}, {"match": "*", "dead_tube": "dead"}], []),
        ([{"match": "a", "dead_tube": "b"}, {"match": "b", "dead_tube": "c"}, {"match": "c"}], []),
        (
            [{"match": "a", "dead_tube": "b"}, {"match": "b", "dead_tube": "a"}],
            [
                "tube \"a\": dead-tube: 'b' leads back to this tube: the chain of dead tubes should end in a tube "
                "without a dead-tube",
                "tube \"b\": dead-tube: 'a' leads back to this tube: the chain of dead tubes should end in a tube "
                "without a dead-tube",
            ],
        ),
    ],
)
def test_policies_that_are_probably_not_meant_deserve_a_warning(tubes, said):
    config = Config(tubes=[TubeConfig(**each) for each in tubes])
    assert warnings_of(config) == said
    assert hash(config)
    assert config.changed() == {"tubes": len(tubes)}
