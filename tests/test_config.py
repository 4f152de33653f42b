"""Settings: from the command line, from the environment, and refused."""

import pytest

from beanstalk_server import Config, ConfigError
from beanstalk_server.config import parse_command_line


def test_the_defaults_are_those_of_beanstalkd_but_for_the_address():
    assert parse_command_line([], {}) == Config()
    assert Config() == Config(listen="127.0.0.1", port=11300, user="", max_job_size=65535, tick=10.0, verbosity=0)


@pytest.mark.parametrize(
    ("line", "config"),
    [
        (
            "-l ::1 -p 1234 -u nobody -z 10 -V",
            Config(listen="::1", port="1234", user="nobody", max_job_size=10, verbosity=1),
        ),
        ("--listen ::1 --port 1234 --max-job-size 10", Config(listen="::1", port="1234", max_job_size=10)),
        ("-l::1 -p1234 -z10 -VVV", Config(listen="::1", port="1234", max_job_size=10, verbosity=3)),
        ("-c -n -cn", Config()),
        ("-z 99999999999", Config(max_job_size=1 << 30)),
        ("--tick 0.5", Config(tick=0.5)),
        ("--stalls", Config(stalls=1)),
    ],
)
def test_options(line, config):
    assert parse_command_line(line.split(), {}) == config


def test_the_environment_goes_behind_the_command_line():
    environment = {
        "BEANSTALK_SERVER_PORT": "1",
        "BEANSTALK_SERVER_LISTEN": "localhost",
        "BEANSTALK_SERVER_VERBOSITY": "2",
        "BEANSTALK_SERVER_TICK": "20",
    }
    assert parse_command_line(["-p", "2"], environment) == Config(listen="localhost", port="2", verbosity=2, tick=20.0)


@pytest.mark.parametrize(
    ("line", "environment", "said"),
    [
        ("-z -1", {}, "-z/--max-job-size: -1 is not between 0 and 1073741824"),
        ("-z 1.5", {}, "-z/--max-job-size: '1.5' is not a number"),
        ("--tick 0", {}, "--tick: 0.0 is not between 0.001 and 1000 milliseconds"),
        ("--tick nan", {}, "--tick: nan is not between 0.001 and 1000 milliseconds"),
        ("", {"BEANSTALK_SERVER_VERBOSITY": "x"}, "BEANSTALK_SERVER_VERBOSITY: 'x' is not a number"),
        ("", {"BEANSTALK_SERVER_VERBOSITY": "-1"}, "-V/--verbosity: -1 is negative"),
        ("-l unix:", {}, "-l/--listen: 'unix:' is no host, address or unix:PATH"),
        ("", {"BEANSTALK_SERVER_PORT": ""}, "-p/--port: '' is no port"),
        ("-p 65536", {}, "-p/--port: '65536' is not between 0 and 65535"),
        ("--max 1", {}, "unrecognized arguments: --max 1"),
    ],
)
def test_what_is_refused(line, environment, said):
    with pytest.raises(ConfigError) as caught:
        parse_command_line(line.split(), environment)
    assert str(caught.value) == said


def test_a_value_of_another_type_is_refused():
    for settings in ({"port": 1.5}, {"listen": None}, {"max_job_size": True}, {"max_job_size": "10"}):
        with pytest.raises(ConfigError, match=" is a "):
            Config(**settings)


def test_the_changed_settings():
    assert Config().changed() == {}
    assert Config(port=0, verbosity=1).changed() == {"port": 0, "verbosity": 1}
