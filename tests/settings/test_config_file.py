"""The config file: read, checked, and put together with the options."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import MISSING
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from effort import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from beanstalk_server import Config, ConfigError, ListenerConfig, TubeConfig, UserConfig
from beanstalk_server.access.accounts import Accounts, hash_of_token
from beanstalk_server.cli import server
from beanstalk_server.cli.command_line import parse
from beanstalk_server.settings.files import LARGEST_FILE
from beanstalk_server.settings.options import OF_ONE_LISTENER, OPTIONS
from beanstalk_server.settings.sections import LISTENER_KEYS, TUBE_KEYS, USER_KEYS
from beanstalk_server.settings.warnings import warnings_of

DOCUMENT = Path(__file__).parents[2] / "docs/config.md"
HASH, ANOTHER = "ab" * 32, "cd" * 32

GOOD = f"""
# one of everything
tick = 0.5
verbosity = 2
salvage = true
binlog = "jobs"

[[listener]]
address = "0.0.0.0:11301"
tls-cert = "server.pem"
tls-key = "server.key"
tls-client-ca = "clients.pem"
auth = "token"

[[listener]]
address = "unix:queue"
proxy-protocol = true
auth = "certificate"

[[listener]]
address = "[::1]:11302"
user = "mail"
proxy-protocol = true
trusted = ["127.0.0.0/8"]

[[user]]
name = "billing"
token-sha256 = ["{HASH}"]
uid = ["root", 1000]
produce = ["mail-*", "bill-*"]
consume = "bill-*"

[[user]]
name = "mail"
inspect = ["*"]
admin = []

[[tube]]
match = "mail-*"
max-jobs = 1000
max-delay = "30d"
max-tries = 5
dead-tube = "dead"
backoff = 0.5
rate = "100/s"
burst = 10

[[tube]]
match = ["bill-*", "default"]
ttl = 60
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory with the files that the good file names."""
    path = tmp_path_factory.mktemp("config")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(path / "server.key")
    certificate.cert_chain_pems[0].write_to_path(path / "server.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(path / "both.pem")
    authority.cert_pem.write_to_path(path / "clients.pem")
    authority.issue_cert("localhost").private_key_pem.write_to_path(path / "another.key")
    (path / "tokens").write_text(f"{HASH}\n")
    return path


@pytest.fixture
def write(directory, monkeypatch):
    """Writes a config file into the current directory."""
    monkeypatch.chdir(directory)

    def write_file(content):
        path = Path("server.toml")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_file


@pytest.fixture
def mistakes(write):
    """What is said about a file, with further options."""

    def of_file(content, *options, environment=None):
        with pytest.raises(ConfigError) as caught:
            parse(["--config", write(content), *options], environment or {})
        return str(caught.value).split("\n")

    return of_file


def test_a_file_has_options_listeners_users_and_tubes(write):
    assert parse(["--config", write(GOOD)], {}) == Config(
        tick=0.5,
        verbosity=2,
        salvage=True,
        binlog="jobs",
        listeners=(
            ListenerConfig(
                address="0.0.0.0:11301",
                tls_cert="server.pem",
                tls_key="server.key",
                tls_client_ca="clients.pem",
                auth="token",
            ),
            ListenerConfig(address="unix:queue", proxy_protocol=True, auth="certificate"),
            ListenerConfig(address="[::1]:11302", user="mail", proxy_protocol=True, trusted=("127.0.0.0/8",)),
        ),
        users=(
            UserConfig(
                name="billing",
                token_sha256=(HASH,),
                uid=(0, 1000),
                produce=("mail-*", "bill-*"),
                consume=("bill-*",),
            ),
            UserConfig(name="mail", inspect=("*",)),
        ),
        tubes=(
            TubeConfig(
                match=("mail-*",),
                max_jobs=1000,
                max_delay=30 * 86400,
                max_tries=5,
                dead_tube="dead",
                backoff=0.5,
                rate="100/s",
                burst=10,
            ),
            TubeConfig(match=("bill-*", "default"), ttl=60),
        ),
    )


IN_A_FILE = {
    "listen": ('"::1"', "::1"),
    "port": ("1234", "1234"),
    "tls_cert": ('"both.pem"', "both.pem"),
    "tls_key": ('"server.key"', "server.key"),
    "tls_client_ca": ('"clients.pem"', "clients.pem"),
    "token_file": ('"tokens"', "tokens"),
    "user": ('"nobody"', "nobody"),
    "io_processes": ("2", "2"),
    "keepalive": ('"30:10:3"', "30:10:3"),
    "max_connections": ("1000", "1000"),
    "idle_timeout": ("3600", "3600"),
    "binlog": ('"jobs"', "jobs"),
    "sync_interval": ('"never"', "never"),
    "segment_size": ("4096", "4096"),
    "body_threshold": ("0x10", "16"),
    "body_cache": ("1_000", "1000"),
    "salvage": ("true", None),
    "cluster": ('"redis://h"', "redis://h"),
    "cluster_name": ('"jobs"', "jobs"),
    "shards": ("8", "8"),
    "replicas": ("2", "2"),
    "lease_ttl": ("5", "5"),
    "advertise": ('"h:1"', "h:1"),
    "unsafe_engine": ("true", None),
    "http": ('"h:1"', "h:1"),
    "http_tubes": ("10", "10"),
    "http_hosts": ('"prometheus,queue.svc"', "prometheus,queue.svc"),
    "max_job_size": ("99999999999", "99999999999"),
    "max_memory": ("1", "1"),
    "group_ttl": ("60", "60"),
    "tick": ("5", "5"),
    "compat": ('"1.12"', "1.12"),
    "verbosity": ("1", None),
    "slow_ms": ("50", "50"),
    "log_format": ('"json"', "json"),
    "log_level": ('"error"', "error"),
}
NEEDS = {"tls_key": "tls_cert", "tls_client_ca": "tls_cert"}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_in_a_file_is_the_same_as_on_the_command_line(option, write):
    options = [option] + [each for each in OPTIONS if each.name == NEEDS.get(option.name)]
    text = "".join(f"{each.key} = {IN_A_FILE[each.name][0]}\n" for each in options)
    flags = [word for each in options for word in (each.flags[-1], IN_A_FILE[each.name][1]) if word is not None]
    config = parse(["--config", write(text)], {})
    assert config == parse(flags, {}) != Config()


def test_the_command_line_goes_over_the_environment_and_that_over_the_file(write):
    path = write("tick = 1\nverbosity = 1\nsalvage = true\nport = 1\n")
    environment = {"BEANSTALK_SERVER_TICK": "2", "BEANSTALK_SERVER_PORT": "2", "BEANSTALK_SERVER_CONFIG": path}
    assert parse(["-p", "3"], environment) == Config(tick=2, verbosity=1, salvage=True, port=3)
    assert parse(["-p", "3", "--config", write("\n")], environment | {"BEANSTALK_SERVER_CONFIG": "nowhere"}) == Config(
        tick=2, port=3
    )


def test_paths_are_relative_to_the_file(directory, monkeypatch):
    (directory / "server.toml").write_text(
        'tls-cert = "both.pem"\ntls-client-ca = "clients.pem"\nlisten = "unix:queue"\nbinlog = "/jobs"\n'
    )
    monkeypatch.chdir(directory.parent)
    name = directory.name
    assert parse(["--config", f"{name}/server.toml"], {}) == Config(
        tls_cert=f"{name}/both.pem", tls_client_ca=f"{name}/clients.pem", listen=f"unix:{name}/queue", binlog="/jobs"
    )


def test_a_path_on_the_command_line_is_relative_to_the_current_directory(directory, monkeypatch):
    (directory / "server.toml").write_text('tls-cert = "nowhere.pem"\n')
    monkeypatch.chdir(directory.parent)
    config = parse(["--config", f"{directory.name}/server.toml", "--tls-cert", f"{directory.name}/both.pem"], {})
    assert config.tls_cert == f"{directory.name}/both.pem"


@pytest.mark.parametrize("content", ["\ufeff# nothing\n", "\r\n", " "])
def test_a_file_without_keys_changes_nothing(content, write):
    assert parse(["--config", write(content)], {}) == Config()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tick = 1\ntick 2\n", ":2: not TOML: Expected '=' after"),
        ("tick = 1\n[[listener", ":2: not TOML: "),
        ("tick =", ":1: not TOML: Invalid value"),
        ("tick = 1\ntick = 2", ":2: not TOML: Cannot overwrite a value"),
        (b"tick = 1\n# caf\xe9\n", ":2: not UTF-8: a TOML file must be in UTF-8"),
        (b"\xff\xfet\0", ":1: not UTF-8: a TOML file must be in UTF-8"),
        ("", ": empty: must have at least one line, such as a comment"),
    ],
)
def test_a_file_that_is_empty_or_not_toml_is_refused(content, said, mistakes):
    (line,) = mistakes(content)
    assert line.startswith("server.toml" + said)


def test_a_file_that_would_be_too_much_is_refused(mistakes):
    assert mistakes("tick = " + "[" * 100_000) == ["server.toml: not TOML: nested too deeply"]
    assert mistakes("#" * (4 << 20) + "#") == ["server.toml: too long: must be at most 4194304 bytes"]
    (line,) = mistakes("tick = " + "1" * 5000)
    assert line.startswith("server.toml: not TOML: Exceeds the limit")
    (line,) = mistakes("tick = 0x" + "f" * 5000)
    assert line.startswith("server.toml: tick: bad value too large to show: must be ")
    (line,) = mistakes(f"listen = '{'x' * 300}'\nbinlog = [{'1,' * 300}]")
    assert line == f"server.toml: binlog: bad value [{'1, ' * 26}1…: must be the path of a directory"


def test_the_option_user_has_another_name_beside_the_sections(mistakes, write):
    (line,) = mistakes('user = "queue"\n[[user]]\nname = "mail"\n')
    assert line.startswith("server.toml:2: not TOML: ")
    assert line.endswith("; the option --user is `run-as` here")
    config = parse(["--config", write('run-as = "queue"\n[[user]]\nname = "mail"\n')], {})
    assert (config.user, config.users) == ("queue", (UserConfig(name="mail"),))


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere.toml", "No such file or directory"), (".", "Is a directory"), ("x" * 300, "File name too long")],
)
def test_a_file_that_cannot_be_read(path, reason):
    with pytest.raises(ConfigError) as caught:
        parse(["--config", path], {})
    assert str(caught.value) == f"{path}: cannot be read: {reason}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_the_right_to_read_it(write):
    path = write("\n")
    os.chmod(path, 0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        parse(["--config", path], {})


AT_H, OF_A = "[[listener]]\naddress = 'h:1'\n", "[[tube]]\nmatch = 'a'\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prot = 1", "prot: no such key: did you mean port[?]"),
        ("max_job_size = 1", "max_job_size: no such key: did you mean max-job-size[?]"),
        ("config = 'x'", "config: no such key: must be one of listen, port, .*, log-level"),
        ("'a\\nb' = 1", r"'a\\\\nb': no such key: must be one of .*"),
        ("auth = 'none'", r"auth: no such key: must be in a \[\[listener\]\] section"),
        ("produce = 'x'", r"produce: no such key: must be in a \[\[user\]\] section"),
        ("burst = 5", r"burst: no such key: must be in a \[\[tube\]\] section"),
        ("[[listeners]]\naddress = 'h:1'", r"listeners: no such key: did you mean \[\[listener\]\][?]"),
        ("[[Listener]]\naddress = 'h:1'", r"Listener: no such key: did you mean \[\[listener\]\][?]"),
        ("[[tubes]]\nmatch = '*'", r"tubes: no such key: did you mean \[\[tube\]\][?]"),
        ("[[users]]\nname = 'a'", r"users: no such key: did you mean \[\[user\]\][?]"),
        (
            AT_H + "tick = 1",
            r"listener 1: tick: no such key: this is an option: it must come before the first \[\[\.\.\.\]\]",
        ),
        (
            AT_H + "[[listener]]\naddress = 'h:2'\ntls-crt = 'x'",
            "listener 2: tls-crt: no such key: did you mean tls-cert[?]",
        ),
        ("[[user]]\nname = 'a b'\nconsum = '*'", 'user "a b": consum: no such key: did you mean consume[?]'),
        ("[[user]]\nname = 'a'\ntoken = 'my-own-token'", 'user "a": token: no such key: did you mean token-sha256[?]'),
        (
            "user = 'queue'",
            r"user: bad value 'queue': must be sections that begin with .*; the option --user is `run-as` here",
        ),
        ("[tube]\nmatch = '*'", r"tube: bad value \[...\]: must be sections that begin with \[\[tube\]\]"),
        ("listener = []", r"listener: bad value \[\]: must be sections that begin with .*"),
        ("listener = [1]", r"listener: bad value \[1\]: must be sections that begin with \[\[listener\]\]"),
        ("tick = true", "tick: bad value true: must be a number of milliseconds from 0.001 to 1000"),
        ("tick = nan", "tick: bad value nan: must be .*"),
        ("port = [1]", "port: bad value .1.: must be a number from 0 to 65535, or the name of a service"),
        ("port = 1979-05-27", r"port: bad value datetime.date\(1979, 5, 27\): must be .*"),
        ("compat = 1.12", 'compat: bad value 1.12: must be "1.12" or "1.13"'),
        ("salvage = 1", "salvage: bad value 1: must be true or false"),
        ('binlog = "a\\u0000b"', r"binlog: bad value 'a\\x00b': must be the path of a directory"),
        ("tls-cert = ''", "tls-cert: bad value '': must be the path of a file, or be left out"),
        ("binlog = ''", "binlog: bad value '': must be the path of a directory, or be left out"),
        (AT_H + "user = ''", "listener 1: user: bad value '': must be .*, or be left out"),
        ("verbosity = -1", "verbosity: bad value -1: must be a whole number, 0 or greater"),
        ("[[listener]]", "listener 1: address: missing: must be host:port, .*"),
        ("[[listener]]\naddress = 1", "listener 1: address: bad value 1: must be host:port, .*"),
        (AT_H + "auth = 'x'", 'listener 1: auth: bad value \'x\': must be "none" or "token" or .*'),
        (AT_H + "auth = 'token'", "listener 1: auth: 'token' without TLS at 'h:1', .*"),
        (AT_H + "user = 'x'", r"listener 1: user: 'x' is unknown: .* \[\[user\]\]"),
        ("[[user]]", "user 1: name: missing: must be a name: .*"),
        ('[[user]]\nname = "a\\nb"', r"user 1: name: bad value 'a\\nb': must be a name: .*"),
        (
            "[[user]]\nname = 'a'\nproduce = ['x y']",
            "user \"a\": produce: bad value 'x y': must be a pattern for tube names: .*",
        ),
        (
            "[[tube]]\nttl = 1",
            "tube 1: match: missing: must be a list of values, each of them a pattern for tube names: .*",
        ),
        ("[[tube]]\nmatch = 'a b'", "tube 1: match: bad value 'a b': must be a pattern for tube names: .*"),
        ("[[tube]]\nmatch = []", r"tube 1: match: bad value \[\]: must not be empty"),
        (OF_A + "max-jobs = -1", 'tube "a": max-jobs: bad value -1: must be a whole number from 0 .*'),
        ("[[tube]]\nmatch = ['a', 'b']\nmax-bytes = 1.5", 'tube "a", …: max-bytes: bad value 1.5: must be .*'),
        (OF_A + "ttl = '5 m'", "tube \"a\": ttl: bad value '5 m': must be a number of seconds .*"),
        (OF_A + "ttl = '50000d'", "tube \"a\": ttl: bad value '50000d': must be .*"),
        (OF_A + "ttl = ''", "tube \"a\": ttl: bad value '': must be .*"),
        (OF_A + "ttl = true", 'tube "a": ttl: bad value true: must be .*'),
        (OF_A + "backoff = -0.5", 'tube "a": backoff: bad value -0.5: must be .*'),
        (OF_A + "key-hold = inf", 'tube "a": key-hold: bad value inf: must be .*'),
        (OF_A + "max-delay = 1e-10", 'tube "a": max-delay: bad value 1e-10: must be .*'),
        (OF_A + "rate = 5", 'tube "a": rate: bad value 5: must be a number per unit of time: .*'),
        (OF_A + "rate = '0/s'", "tube \"a\": rate: bad value '0/s': must be .*"),
        (OF_A + "burst = 0", 'tube "a": burst: bad value 0: must be a whole number from 1 .*'),
        (OF_A + "dead-tube = '-b'", "tube \"a\": dead-tube: bad value '-b': must be a tube's name: .*"),
        (OF_A + "dead-tube = ''", "tube \"a\": dead-tube: bad value '': must be .*, or be left out"),
        (OF_A + "max-job = 1", 'tube "a": max-job: no such key: did you mean max-jobs[?]'),
        (OF_A + "tick = 1", 'tube "a": tick: no such key: this is an option: .*'),
        ("[[tube]]\nmatch = ['b', 'a*']\ndead-tube = 'b'", 'tube "b", …: dead-tube must differ from match'),
    ],
)
def test_what_is_wrong_in_a_file(content, said, mistakes):
    (line,) = mistakes(content)
    assert re.fullmatch(f"server.toml: {said}", line)


def test_every_mistake_is_named_at_once_with_those_of_the_options(mistakes):
    content = f"""
        tick = "x"
        [[listener]]
        address = "0.0.0.0:1"
        auth = "token"
        [[listener]]
        address = "localhost:1"
        tls-cert = "nowhere.pem"
        tls-key = "nowhere.key"
        user = "mail"
        [[listener]]
        address = "localhost:1"
        auth = "tokens"
        user = "billing"
        [[user]]
        name = "billing"
        token-sha256 = ["{HASH}", "x"]
        [[user]]
        name = "third"
        token-sha256 = "{ANOTHER}"
        [[user]]
        name = "fourth"
        token-sha256 = "{ANOTHER}"
    """
    places = [line.partition(" '")[0].partition(" bad")[0] for line in mistakes(content, "-z", "-1")]
    assert places == [
        "-z/--max-job-size:",
        "server.toml: tick:",
        "server.toml: listener 1: auth:",
        "server.toml: listener 3: auth:",
        'server.toml: user "billing": token-sha256:',
        "server.toml: listener 2: user:",
        "server.toml: listener 3: address: duplicate",
        'server.toml: user "fourth": token-sha256: duplicate token: user "third" has it already',
        "server.toml: listener 2: tls-cert:",
        "server.toml: listener 2: tls-key:",
    ]


@pytest.mark.parametrize("name", OF_ONE_LISTENER)
def test_an_option_that_describes_a_listener_is_refused_beside_sections(name, mistakes):
    """If one of the two were ignored, the operator would rely on it."""
    option = next(each for each in OPTIONS if each.name == name)
    typed, text = IN_A_FILE[name]
    section = "[[listener]]\naddress = 'localhost:1'\n"
    beside = "with a [[listener]], which has its own: must be left out"
    value = typed.replace('"', "'")
    flags = "/".join(option.flags)
    assert mistakes(section, option.flags[-1], text) == [f"server.toml: listener: {flags}: {value} {beside}"]
    assert mistakes(section, environment={option.variable: text}) == [
        f"server.toml: listener: {option.variable}: {value} {beside}"
    ]
    assert mistakes(f"{option.key} = {typed}\n{section}") == [f"server.toml: {option.key}: {value} {beside}"]


def test_a_mistake_of_an_option_is_named_where_it_was_made(mistakes):
    said = "'k' without a certificate: tls-cert must name its file"
    assert mistakes("tls-key = 'k'") == [f"server.toml: tls-key: {said}"]
    assert mistakes("\n", "--tls-key", "k") == [f"--tls-key: {said}"]
    assert mistakes("\n", environment={"BEANSTALK_SERVER_TLS_KEY": "k"}) == [f"BEANSTALK_SERVER_TLS_KEY: {said}"]


def test_a_bad_value_is_not_also_missing(mistakes):
    assert len(mistakes("tls-cert = 1\ntls-key = 'server.key'")) == 1
    assert len(mistakes("[[listener]]\naddress = 'h:1'\ntls-cert = 1\nauth = 'token'")) == 1
    assert len(mistakes("[[listener]]\naddress = 'h:1'\nuser = 'a'\n[[user]]\nname = 'a'\nuid = -1")) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tls-cert = 'nowhere'", "tls-cert: 'nowhere' cannot be read: No such file or directory: must be a PEM file"),
        ("tls-cert = '.'", "tls-cert: './.' cannot be read: Is a directory: must be a PEM file"),
        ("token-file = 'nowhere'", "token-file: 'nowhere' cannot be read: No such file or directory"),
        ("token-file = 'server.pem'", "token-file: 'server.pem', line 1: bad value .*"),
    ],
)
def test_a_file_that_is_named_must_be_good(content, said, mistakes):
    (line, *_) = mistakes(content)
    assert re.fullmatch(f"server.toml: {said}".replace("./.", "."), line)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_without_a_writer_is_empty(pipe, write):
    written = write(f"token-file = '{pipe}'")
    for place, said in (
        (["--config", str(pipe)], f"{pipe}: empty: must have at least one line, such as a comment"),
        (
            ["--config", written],
            f"server.toml: token-file: '{pipe}' is empty: must have a line with the SHA-256 of a token",
        ),
        (["--tls-cert", str(pipe)], f"--tls-cert: {pipe}: is a pipe, which can be read only once: must be a file"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse(place, {})
        assert str(caught.value) == said


def test_a_config_may_come_through_a_pipe(directory):
    reads, writes = os.pipe()
    os.write(writes, b"tick = 0.5\n")
    os.close(writes)
    with open(reads):
        assert parse(["--config", f"/dev/fd/{reads}"], {}).tick == 0.5
        with pytest.raises(ConfigError, match="empty"):  # when it is read again
            parse(["--config", f"/dev/fd/{reads}"], {})


@pytest.mark.parametrize("key", ["tls-cert", "tls-client-ca", "token-file"])
def test_a_file_without_an_end_is_refused(key, directory, mistakes):
    (line,) = mistakes(f"{key} = '/dev/zero'\n" + ("tls-cert = 'both.pem'" if key == "tls-client-ca" else ""))
    assert line.startswith(f"server.toml: {key}: ")


@pytest.mark.parametrize(
    "files",
    [
        {"tls-cert": "server.pem"},
        {"tls-cert": "tokens"},
        {"tls-cert": "server.pem", "tls-key": "another.key"},
        {"tls-cert": "server.pem", "tls-key": "tokens"},
        {"tls-cert": "both.pem", "tls-client-ca": "tokens"},
    ],
)
def test_certificates_and_keys_must_be_good_and_fit_each_other(files, mistakes):
    lines = "".join(f"{key} = '{file}'\n" for key, file in files.items())
    (line,) = mistakes(lines)
    assert re.match(r"server\.toml: tls-[a-z-]+: .*(server\.pem|tokens|another\.key)", line)
    (line,) = mistakes(f"[[listener]]\naddress = 'localhost:1'\n{lines}")
    assert re.match(r"server\.toml: listener 1: tls-[a-z-]+: .*(server\.pem|tokens|another\.key)", line)


def run(capsys, *arguments):
    status = server.main(arguments)
    out, err = capsys.readouterr()
    return status, out.splitlines(), err.splitlines()


def test_check_config_says_what_is_good_and_what_deserves_a_warning(write, capsys):
    path = write(GOOD)
    os.chmod("server.key", 0o600)
    assert run(capsys, "--check-config", "--config", path) == (0, ["server.toml: valid"], [])
    path = write(GOOD + "[[listener]]\naddress = 'localhost:3'\n")
    status, out, err = run(capsys, "--check-config", "--config", path)
    assert (status, out[1:], err) == (0, ["server.toml: valid"], [])
    assert out[0].startswith("server.toml: warning: listener 4: every client of this listener ")
    assert run(capsys, "--check-config", "-p", "1") == (0, ["the options: valid"], [])


def test_check_config_warns_of_a_certificate_that_has_expired(write, capsys, directory):
    authority = trustme.CA()
    expired = authority.issue_cert("localhost", not_after=datetime(2020, 1, 2, tzinfo=UTC))
    expired.private_key_and_cert_chain_pem.write_to_path(directory / "expired.pem")
    os.chmod(directory / "expired.pem", 0o600)
    path = write("tls-cert = 'expired.pem'\n")
    warning = "server.toml: warning: tls-cert expired.pem: clients will refuse it: certificate has expired"
    assert run(capsys, "--check-config", "--config", path) == (0, [warning, "server.toml: valid"], [])


def test_what_does_not_go_together_is_told_beside_a_key_that_is_bad(write, capsys):
    path = write("[[tube]]\nmatch = 'a'\nmax-job = 1\nburst = 5\nrate = 'x'\nbackoff = '1m'\nbackoff-max = 30\n")
    _, _, said = run(capsys, "--check-config", "--config", path)
    assert [each.split(": ")[3] for each in said] == ["max-job", "rate", "backoff-max"], "burst may be good with a rate"


PUBLIC = "every user of this machine can write to it: use chmod o-w"


def test_a_config_file_that_all_users_may_write_is_refused(write, capsys):
    path = write("tick = 1\n")
    os.chmod(path, 0o666)
    said = f"beanstalk-server: server.toml: cannot be read: {PUBLIC}"
    assert run(capsys, "--check-config", "--config", path) == (5, [], [said])
    os.chmod(path, 0o644)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("tokens", ["--token-file", "tokens"]),
        ("server.pem", ["--tls-cert", "server.pem", "--tls-key", "server.key"]),
        ("server.key", ["--tls-cert", "server.pem", "--tls-key", "server.key"]),
        ("clients.pem", ["--tls-cert", "both.pem", "--tls-client-ca", "clients.pem"]),
        ("jobs", ["-b", "jobs"]),
    ],
)
def test_a_file_that_all_users_may_write_is_refused(directory, tmp_path, monkeypatch, capsys, file, options):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "jobs").mkdir()
    os.chmod(file, 0o757)
    status, _, (said,) = run(capsys, "--check-config", *options)
    assert (status, said.count(PUBLIC)) == (5, 1)
    os.chmod(file, 0o755)
    assert run(capsys, "--check-config", *options)[0] == 0


@pytest.mark.parametrize("checks", [[], ["--check-config"]], ids=["start", "check"])
def test_a_start_says_the_same_as_check_config(checks, write, capsys):
    path = write("tick = 0\n[[listener]]\naddress = 'localhost'\n")
    status, out, err = run(capsys, *checks, "--config", path, "--max-memory", "x")
    assert (status, out) == (5, [])
    assert err == [
        "beanstalk-server: --max-memory: bad value 'x': "
        "must be a whole number of bytes from 0 to 1125899906842624, or with a unit: 64MiB, 2GB",
        "beanstalk-server: server.toml: tick: bad value 0: must be a number of milliseconds from 0.001 to 1000",
        "beanstalk-server: server.toml: listener 1: address: bad value 'localhost': "
        "must be host:port, [v6]:port or unix:PATH",
    ]


def test_check_config_looks_for_the_user_and_the_directory_too(mistakes):
    assert mistakes("run-as = 'no-such-user'\nbinlog = 'tokens'", "--check-config") == [
        "server.toml: run-as: 'no-such-user' is unknown: must be the name of a user of this system",
        "server.toml: binlog: 'tokens' is not a directory: must be a directory, or a path that does not exist",
    ]


def test_a_new_token_and_its_hash_go_into_a_file_as_they_are_printed(write, capsys):
    status, (token, line), err = run(capsys, "token")
    assert (status, err) == (0, [])
    config = parse(["--config", write(f"[[user]]\nname = 'mail'\n{line}\n")], {})
    assert Accounts(config.users).by_token(token.removeprefix("token: ")).name == "mail"
    assert run(capsys, "token")[1] != [token, line]


def test_the_token_command_has_a_help_and_no_options(capsys):
    status, out, err = run(capsys, "token", "--help")
    assert (status, err) == (0, [])
    assert out[0] == "Usage: beanstalk-server token"
    assert run(capsys, "token", "mail") == (
        5,
        [],
        ["beanstalk-server token: mail: unexpected argument: the command takes none"],
    )


def documented():
    return DOCUMENT.read_text()


@pytest.mark.parametrize(("section", "keys"), [("listener", LISTENER_KEYS), ("user", USER_KEYS), ("tube", TUBE_KEYS)])
def test_the_document_has_every_key(section, keys):
    rows = ["| key | value | default | what it is |", "|---|---|---|---|"]
    for key in keys:
        default = "" if key.default in (MISSING, "", ()) else f"`{json.dumps(key.default)}`"
        rows.append(f"| `{key.key}` | {key.kind.typed} | {default} | {key.meaning} |")
    table = "\n".join([f"<!-- keys: {section} -->", "", *rows, "", f"<!-- end of keys: {section} -->"])
    assert table in documented(), f"docs/config.md must have:\n\n{table}\n"


def test_the_example_of_the_document_is_a_good_file(write):
    (example_file,) = re.findall(r"```toml\n(.*?)```", documented(), re.DOTALL)
    config = parse(["--config", write(example_file)], {})
    assert [each.address for each in config.listeners] == ["0.0.0.0:11301", "unix:/run/queue.sock"]
    assert config.users[1] == UserConfig(name="deploy", uid=(0, 1000), inspect=("*",), admin=("*",))
    assert config.tubes == (TubeConfig(match="mail-*", max_tries=5, backoff=10, dead_tube="dead"),)


def test_the_example_of_policies_is_a_good_file_without_a_warning(write):
    (example_file,) = re.findall(r"```toml\n(.*?)```", (DOCUMENT.parent / "policies.md").read_text(), re.DOTALL)
    path = write(example_file)
    os.chmod(path, 0o600)
    config = parse(["--config", path], {})
    assert [each.match[0] for each in config.tubes] == ["dead", "payment-*", "mail-*", "thumbnails"]
    assert warnings_of(config) == []


@pytest.mark.parametrize("page", ["access.md", "observability.md", "scaling.md"])
def test_the_examples_of_other_pages_are_good_files(write, page):
    examples = re.findall(r"```toml\n(.*?)```", (DOCUMENT.parent / page).read_text(), re.DOTALL)
    for each in examples:
        clients = '[[listener]]\naddress = "127.0.0.1:11300"\n'  # a server with a listener for HTTP only is refused
        parse(["--config", write(each.replace('"HASH"', f'"{HASH}"') + clients)], {})
    assert examples


def test_the_hash_in_the_document_is_that_of_its_token():
    (token,) = re.findall(r"token: (.+)", documented())
    assert set(re.findall(r"[0-9a-f]{64}", documented())) == {hash_of_token(token)}


def pieces():
    """Good and bad pieces of a file."""
    words = st.sampled_from(
        [each.key for each in (*OPTIONS, *LISTENER_KEYS, *USER_KEYS, *TUBE_KEYS)]
        + """[[listener]] [[user]] [[tube]] "5/m" "9d" [user] [ ] = " ' { } , . # - \\u0000""".split()
        + ["\n"]
        + ["1", "-1", "1e400", "nan", "true", "0x" + "f" * 4000, "9" * 4400, "1979-05-27", '"*"', '""', '"unix:"']
        + ['"token"', '"0.0.0.0:1"', '["10.0.0.0/8"]', "\ufeff", "\r", "\x85", "\u2028", '"""', "[[[["]
    )
    return st.one_of(words.map(str.encode), st.binary(max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 30), pieces()), min_size=1, max_size=4))
@example([(0, 0, b"port = 0x" + b"f" * 5000 + b"\n")])
@example([(0, 0, b"port = " + b"[" * 200 + b"]" * 200 + b"\n")])
@example([(GOOD.index("0.0.0.0"), 1, b"\\u0085")])
@example([(0, 0, b'listener = "\\u0085"\n')])
def test_a_mutated_file_gives_a_configuration_or_mistakes_that_name_it(write, changes):
    content = GOOD.encode()
    for at, removed, piece in changes:
        content = content[:at] + piece + content[at + removed :]
    try:
        config, said = parse(["--config", write(content)], {}), []
    except ConfigError as error:
        config, said = None, str(error).split("\n")
    assert isinstance(config, Config) or said
    assert all(line.startswith("server.toml:") and line.isprintable() for line in said)
    assert not any(HASH in line or len(line) > 10_000 for line in said)


def test_there_may_be_ten_thousand_users(write):
    users = "".join(
        f"[[user]]\nname = 'user-{number}'\ntoken-sha256 = '{number:064x}'\nproduce = ['mail-*', 'bill-*']\n"
        for number in range(1000)
    )
    assert len(parse(["--config", write(users)], {}).users) == 1000
    assert 10 * len(users) < LARGEST_FILE


@pytest.mark.sockets
def test_a_start_without_a_config_file_imports_nothing_of_it(directory):
    script = (
        "import sys; before = set(sys.modules); from beanstalk_server.cli.command_line import parse;"
        " parse(['-p', '0'], {}); print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True, timeout=20)
    needless = {"tomllib", "ssl", "hashlib", "hmac", "ipaddress", "pwd", "difflib", "secrets"}
    assert not needless & set(done.stdout.split())
    assert not any(module.startswith("beanstalk_server.access") for module in done.stdout.split())
