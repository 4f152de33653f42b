"""Options: from the command line, from the environment, and refused; and as docs/config.md lists them."""

from datetime import timedelta
from pathlib import Path

import pytest

from beanstalk_server import Config, ConfigError, ListenerConfig, TubeConfig
from beanstalk_server.cli.command_line import BEHIND_THEM, PREFIX, asks_for_json, help_text, odd_variables, parse
from beanstalk_server.settings.options import OPTIONS
from beanstalk_server.settings.warnings import warnings_of

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_defaults_are_those_of_beanstalkd_but_for_the_address():
    assert parse([], {}) == Config()
    assert Config() == Config(listen="127.0.0.1", port=11300, user="", max_job_size=65535, tick=0.25, verbosity=0)


@pytest.mark.parametrize(
    ("line", "config"),
    [
        (
            "-l ::1 -p 1234 -u nobody -z 10 -V",
            Config(listen="::1", port=1234, user="nobody", max_job_size=10, verbosity=1),
        ),
        ("--listen ::1 --port 1234 --max-job-size 10", Config(listen="::1", port=1234, max_job_size=10)),
        ("-l::1 -p1234 -z10 -VVV", Config(listen="::1", port=1234, max_job_size=10, verbosity=3)),
        ("-c -n -cn", Config()),
        ("-cnVp1", Config(port=1, verbosity=1)),
        ("--port=1 --tick= --tick=5", Config(port=1, tick=5)),
        ("--salvage --salvage", Config(salvage=True)),
        ("-z 99999999999", Config(max_job_size=1 << 30)),
        ("-z 64KiB", Config(max_job_size=65536)),
        ("--tick 0.5", Config(tick=0.5)),
        (
            "--cluster redis://u:p@h --cluster-name jobs --shards 8 --replicas 2 --lease-ttl 5 --advertise 10.0.0.1:7",
            Config(
                cluster="redis://u:p@h",
                cluster_name="jobs",
                shards=8,
                replicas=2,
                lease_ttl=5,
                advertise="10.0.0.1:7",
            ),
        ),
        ("--advertise [::1]:7000 --unsafe-engine", Config(advertise="[::1]:7000", unsafe_engine=True)),
        ("--compat 1.12", Config(compat="1.12")),
        ("-p beanstalk", Config(port="beanstalk")),
        ("-f 50 -s 4096 --salvage", Config(sync_interval=50, segment_size=4096, salvage=True)),
        ("-f 50 -F", Config(sync_interval="never")),
        ("-f never", Config(sync_interval="never")),
        ("-F -f 50", Config(sync_interval=50)),
        ("--keepalive 0", Config(keepalive=0)),
    ],
)
def test_options(line, config):
    assert parse(line.split(), {}) == config


def test_the_environment_goes_behind_the_command_line():
    environment = {
        "BEANSTALK_SERVER_PORT": "1",
        "BEANSTALK_SERVER_LISTEN": "localhost",
        "BEANSTALK_SERVER_VERBOSITY": "2",
        "BEANSTALK_SERVER_TICK": "20",
        "BEANSTALK_SERVER_UNSAFE_ENGINE": "1",
        "BEANSTALK_SERVER_SALVAGE": "0",
    }
    assert parse(["-p", "2"], environment) == Config(
        listen="localhost", port=2, verbosity=2, tick=20, unsafe_engine=True
    )


def test_a_variable_that_is_empty_is_not_set():
    empty = {each.variable: "" for each in OPTIONS} | {"BEANSTALK_SERVER_CONFIG": ""}
    assert parse([], empty) == Config()
    assert odd_variables(empty) == [
        f"BEANSTALK_SERVER_{name}: empty, so it has no effect: must be the path of a file, or be unset"
        for name in ("CONFIG", "TLS_CERT", "TLS_CLIENT_CA", "TLS_KEY", "TOKEN_FILE")
    ]


def test_the_variables_of_a_service_of_kubernetes_set_no_option():
    names = {
        "BEANSTALK_SERVER_SERVICE_HOST": "10.0.0.1",
        "BEANSTALK_SERVER_SERVICE_PORT": "11300",
        "BEANSTALK_SERVER_SERVICE_PORT_BEANSTALK": "11300",
        "BEANSTALK_SERVER_PORT": "tcp://10.0.0.1:11300",
        "BEANSTALK_SERVER_PORT_11300_TCP": "tcp://10.0.0.1:11300",
        "BEANSTALK_SERVER_PORT_11300_TCP_ADDR": "10.0.0.1",
        "BEANSTALK_SERVER_HTTP_PORT": "tcp://10.0.0.2:9113",
        "BEANSTALK_SERVER_HTTP_PORT_9113_TCP_PROTO": "tcp",
        "BEANSTALK_SERVER_HTTP_SERVICE_HOST": "10.0.0.2",
    }
    assert parse([], names) == Config()
    assert odd_variables(names) == []
    assert odd_variables({"BEANSTALK_SERVER_HTTP_PROT": "1"}) != []


@pytest.mark.parametrize(
    ("texts", "is_on"), [("true True YES on 1 2", True), ("false False NO off 0", False)], ids=["on", "off"]
)
def test_a_variable_turns_an_option_on_or_off(texts, is_on):
    for text in texts.split():
        assert parse([], {"BEANSTALK_SERVER_SALVAGE": text}) == Config(salvage=is_on), text


def test_words_may_be_in_upper_case():
    words = {"LOG_LEVEL": "WARNING", "LOG_FORMAT": "Json", "SYNC_INTERVAL": "NEVER"}
    config = Config(log_level="warning", log_format="json", sync_interval="never")
    assert parse([], {f"BEANSTALK_SERVER_{name}": word for name, word in words.items()}) == config
    assert parse(["--log-level", "Warning", "--log-format=JSON", "-f", "Never"], {}) == config
    assert Config(log_level="WARNING", log_format="JSON", sync_interval="never") == config
    assert asks_for_json(["--log-format=JSON"], {})


BYTES = "or with a unit: 64MiB, 2GB"
PORT = "must be a number from 0 to 65535, or the name of a service"
SWITCH = "must be true or false, yes or no, on or off, 1 or 0"
ALL = "beanstalk-server --help lists all options"

REFUSED = {
    "-z -1": f"-z/--max-job-size: bad value '-1': must be a whole number of bytes from 0 to 1073741824, {BYTES}",
    "-z 1.5": f"-z/--max-job-size: bad value '1.5': must be a whole number of bytes from 0 to 1073741824, {BYTES}",
    "-s 0": f"-s/--segment-size: bad value '0': must be a whole number of bytes from 1 to 137438953472, {BYTES}",
    "--tick 0": "--tick: bad value '0': must be a number of milliseconds from 0.001 to 1000",
    "--tick nan": "--tick: bad value 'nan': must be a number of milliseconds from 0.001 to 1000",
    "--tick never": "--tick: bad value 'never': must be a number of milliseconds from 0.001 to 1000",
    "-f often": (
        "-f/--sync-interval: bad value 'often': must be a number of milliseconds from 0 to 2147483648, or 'never'"
    ),
    "$VERBOSITY=x": "$VERBOSITY: bad value 'x': must be a whole number, 0 or greater",
    "$VERBOSITY=-1": "$VERBOSITY: bad value '-1': must be a whole number, 0 or greater",
    "$SALVAGE=maybe": f"$SALVAGE: bad value 'maybe': {SWITCH}",
    "$SALVAGE=-1": f"$SALVAGE: bad value '-1': {SWITCH}",
    "-l unix:": "-l/--listen: bad value 'unix:': must be a host name, an address or unix:PATH",
    "$PORT=udp://10.0.0.1:11300": f"$PORT: bad value 'udp://10.0.0.1:11300': {PORT}",
    "-p a:b": f"-p/--port: bad value 'a:b': {PORT}",
    "$LISTEN=[]": "$LISTEN: bad value '[[]]:11300': must be host:port, [v6]:port or unix:PATH",
    "$CLUSTER=redis://h $BINLOG=/x": "$BINLOG: '/x' with $CLUSTER, where the engine keeps the jobs: must be left out",
    "$CLUSTER=redis://h -s 268435457": "-s/--segment-size: 268435457 with $CLUSTER: must be at most 268435456",
    "$CLUSTER=redis://:secret@h:x": (
        "$CLUSTER: bad value (not shown): must have a port from 1 to 65535 after each host, or none"
    ),
    "$TLS_KEY=k": "$TLS_KEY: 'k' without a certificate: tls-cert must name its file",
    "--prot 1": "--prot: no such option: did you mean --port?",
    "--max-jobsize=1": "--max-jobsize=1: no such option: did you mean --max-job-size?",
    "--verison": "--verison: no such option: did you mean --version?",
    "-V --chek-config": "--chek-config: no such option: did you mean --check-config?",
    "-p 65536": f"-p/--port: bad value '65536': {PORT}",
    "--compat 1.11": "--compat: bad value '1.11': must be 1.12 or 1.13",
    "--max-job 1": "--max-job: no such option: did you mean --max-job-size?",
    "--xyz": f"--xyz: no such option; {ALL}",
    "-Vx": f"-x: no such option; {ALL}",
    "extra": f"extra: no such option; {ALL}",
    "-": f"-: no such option; {ALL}",
    "-p": "-p: needs a value",
    "--port": "--port: needs a value",
    "--salvage=1": "--salvage=1: --salvage takes no value",
    "--check-config=1": "--check-config=1: --check-config takes no value",
    "--tls-cert=": "--tls-cert: bad value '': must be the path of a file",
    "--user=": "-u/--user: bad value '': must be the name of a user",
    "--binlog=": "-b/--binlog: bad value '': must be the path of a directory",
    "--lease-ttl 1": "--lease-ttl: bad value '1': must be a number of seconds from 2 to 300",
    "--shards 0": "--shards: bad value '0': must be a whole number from 1 to 1024",
    "--shards 1025": "--shards: bad value '1025': must be a whole number from 1 to 1024",
    "--replicas -1": "--replicas: bad value '-1': must be a whole number from 0 to 100",
    "--advertise h:000000123456": "--advertise: bad value 'h:000000123456': must be host:port or [v6]:port",
    "--http h:000000123456": "--http: bad value 'h:000000123456': must be host:port, [v6]:port or unix:PATH",
    "--advertise h:0": "--advertise: bad value 'h:0': must be host:port or [v6]:port",
    "--advertise unix:/x": "--advertise: bad value 'unix:/x': must be host:port or [v6]:port",
    "--cluster-name a:b": "--cluster-name: bad value 'a:b': must be 1 to 100 letters, digits, ., - or _",
    "--cluster redis://:secret\x01@h": (
        "--cluster: bad value (not shown, 18 characters): must be a URL such as redis://host:6379 or postgresql://host/database"
    ),
    "--cluster redis://:secret@h:x": (
        "--cluster: bad value (not shown): must have a port from 1 to 65535 after each host, or none"
    ),
    "--cluster redis://h -b /x": (
        "-b/--binlog: '/x' with --cluster, where the engine keeps the jobs: must be left out"
    ),
    "--cluster redis://h --salvage": (
        "--salvage: given with --cluster, where there is no binlog to salvage: must be left out"
    ),
    "--cluster redis://h --advertise 0.0.0.0:7000": "--advertise: '0.0.0.0:7000' is a wildcard address: must "
    "be a specific address",
    "--cluster redis://h --body-cache 0": (
        "--body-cache: 0 with --cluster, where all bodies stay in memory: must be left out"
    ),
    "--cluster redis://h -s 268435457": "-s/--segment-size: 268435457 with --cluster: must be at most 268435456",
    "--cluster redis://h -z 1073741824": "-z/--max-job-size: 1073741824 with --cluster: must be at most 268435456",
    "--config=": "--config: bad value '': must be the path of a file",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_refused(line):
    """Variables stand before the options, as in a shell; `$` is their prefix."""
    words = line.split(" ")
    variables = dict(word.replace("$", PREFIX).split("=", 1) for word in words if word.startswith("$"))
    with pytest.raises(ConfigError) as caught:
        parse([word for word in words if not word.startswith("$")], variables)
    assert str(caught.value) == REFUSED[line].replace("$", PREFIX)


def test_every_bad_value_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        parse(["-p", "", "--tick", "x", "--config="], {"BEANSTALK_SERVER_SALVAGE": "y"})
    assert [mistake.place for mistake in caught.value.mistakes] == [
        "-p/--port",
        "BEANSTALK_SERVER_SALVAGE",
        "--tick",
        "--config",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"port": 1.5},
        {"port": True},
        {"listen": None},
        {"user": 0},
        {"sync_interval": "often"},
        {"sync_interval": True},
        {"max_job_size": True},
        {"max_job_size": "10"},
        {"max_job_size": (1 << 30) + 1},
        {"tick": "10"},
        {"verbosity": "1"},
        {"salvage": 2},
    ],
)
def test_a_bad_value_from_python_is_refused_too(values):
    with pytest.raises(ConfigError, match=r": bad value .*: must be "):
        Config(**values)


def test_values_from_python_may_be_paths_sizes_with_a_unit_and_durations():
    place = Path("/tmp/jobs")
    config = Config(
        binlog=place, tls_cert=place, max_memory="2GB", max_job_size="64KiB", tick=timedelta(microseconds=500)
    )
    assert (config.binlog, config.tls_cert, config.max_memory) == ("/tmp/jobs", "/tmp/jobs", 2_000_000_000)
    assert (config.max_job_size, config.tick) == (65536, 0.5)
    assert ListenerConfig(address="h:1", tls_cert=place).tls_cert == "/tmp/jobs"
    assert TubeConfig(match="a", ttl=timedelta(minutes=5)).ttl == 300


def test_the_changed_options():
    assert Config().changed() == {}
    assert Config(port=0, verbosity=1).changed() == {"port": 0, "verbosity": 1}


def test_the_password_of_an_engine_is_shown_nowhere():
    for url in (
        "redis://user:secret@h:1/2",
        "redis://:secret%2Fsecret@h",
        "redis+sentinel://h/s?sentinel-password=secret",
    ):
        config = Config(cluster=url)
        assert "secret" not in repr(config)
        assert "secret" not in str(config.changed())
    assert Config(cluster="redis://user:secret@h:1/2").changed() == {"cluster": "redis://…@h:1/2"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"shards": 8, "replicas": 2, "lease_ttl": 5},
            [f"--{name}: has no effect without --cluster" for name in ("shards", "replicas", "lease-ttl")],
        ),
        ({"verbosity": 2, "log_level": "info"}, []),
        ({"verbosity": 2, "log_level": "error"}, ["-V/--verbosity: has no effect with --log-level error"]),
        ({"cluster": "redis://h"}, []),
        (
            {"cluster": "redis://h", "replicas": 0},
            ["--replicas 0: if the engine is lost, acknowledged jobs are lost: should be 1 or more"],
        ),
    ],
)
def test_options_without_a_use_or_that_may_lose_jobs_deserve_a_warning(values, said):
    assert warnings_of(Config(**values)) == said


def test_the_page_has_every_option():
    table = "\n".join(rows_of_options())
    assert table in PAGE.read_text(), f"the table in docs/config.md must be:\n\n{table}\n"


def rows_of_options():
    yield "| option | default | what it does |"
    yield "|---|---|---|"
    for option in OPTIONS:
        metavar = option.kind.metavar
        flags = ", ".join(f"`{flag} {metavar}`" if metavar else f"`{flag}`" for flag in option.flags)
        default = f"`{option.default}`" if metavar and option.default != "" else ""
        yield f"| {flags} | {default} | {option.meaning} |"
        if option.also:
            yield f"| `{option.also[0]}` |  | the same as `{option.short} {option.also[1]}` |"
    for flags, meaning in BEHIND_THEM:
        yield f"| `{flags}` |  | {meaning} |"


def test_the_help_says_between_which_numbers_a_value_is():
    text = " ".join(help_text().split())
    assert "--lease-ttl S lease time: seconds without a renewal until another node takes over (2 to 300; " in text


@pytest.mark.parametrize("port", ["70000", "000000123456", "9" * 5000])
def test_the_number_of_a_port_is_at_most_65535_also_as_a_text_with_zeros(port):
    with pytest.raises(ConfigError, match="--port: bad value"):
        Config(port=port)
    with pytest.raises(ConfigError, match="address: bad value"):
        ListenerConfig(address=f"127.0.0.1:{port}")
    assert ListenerConfig(address="127.0.0.1:0000011300").port == 11300


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2_000_000_000), ("64MiB", 64 << 20), ("1kB", 1000), ("1KiB", 1024), ("3 TB", 3 * 10**12), ("77", 77)],
)
def test_a_size_may_have_a_unit(text, size):
    assert parse(["--max-memory", text], {}).max_memory == size
    if text != "77":
        assert TubeConfig(match="a", max_bytes=text).max_bytes == size


@pytest.mark.parametrize("text", ["2G", "2gb", "GB", "-1MB", "1.5GB", "1KB ", "2MB3", "9" * 30 + "GB", "20000TB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="or with a unit: 64MiB, 2GB"):
        parse(["--max-memory", text], {})


def test_a_variable_that_sets_no_option_deserves_a_warning():
    theirs = {"BEANSTALK_SERVER_SERVICE_HOST": "10.0.0.1", "BEANSTALK_SERVER_PORT_11300_TCP": "tcp://…", "PATH": "/bin"}
    good = {"BEANSTALK_SERVER_PURE": "1", "BEANSTALK_SERVER_CONFIG": "x", "BEANSTALK_SERVER_MAX_MEMORY": "1"}
    assert odd_variables(theirs | good) == []
    assert odd_variables(good | {"BEANSTALK_SERVER_PROT": "1"}) == [
        "BEANSTALK_SERVER_PROT: unknown variable: did you mean BEANSTALK_SERVER_PORT?",
    ]
    assert parse(["--check-config"], {"BEANSTALK_SERVER_XYZ": "1"}) == (
        "the options: warning: BEANSTALK_SERVER_XYZ: unknown variable\nthe options: valid"
    )
