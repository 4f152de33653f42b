"""Policies in a server: which tubes have one, from the start and after a reload."""

import re
import sys
import time

import pytest

from beanstalk_server import Config, ConfigError, Server, TubeConfig
from beanstalk_server.queue.policy import NO_POLICY
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from harness import servers
from harness.caller import Caller
from harness.in_thread import ServerThread
from harness.servers import ROOT
from harness.waiting import eventually

MAIL = TubeConfig(match="mail-*", max_tries=3)
DEFAULT = TubeConfig(match="default", max_jobs=2)

HOUR = 3600 * SECOND


def policy_in(server, tube):
    """What a tube that there is demands."""
    return server.call(lambda: server.server.broker.tubes[tube].policy)


@pytest.mark.parametrize("io_processes", [0, 1])
def test_a_tube_has_the_policy_of_its_section_when_it_is_made(run, io_processes):
    server = run(tubes=[MAIL, DEFAULT], io_processes=io_processes)
    caller = Caller(server.address)
    for tube in (b"mail-1", b"mail-2", b"other"):
        assert caller.ask(b"watch %b\r\n" % tube).startswith(b"WATCHING ")
    assert policy_in(server, "default").max_jobs == 2
    assert policy_in(server, "mail-1") is policy_in(server, "mail-2")
    assert policy_in(server, "mail-1").max_tries == 3
    assert policy_in(server, "other") is NO_POLICY


def test_a_tube_that_comes_back_from_the_binlog_has_its_policy(run, tmp_path, loop_factory):
    server = ServerThread(Config(port=0, binlog=str(tmp_path)), loop_factory)
    caller = Caller(server.address)
    assert caller.ask(b"use mail-1\r\n") == b"USING mail-1\r\n"
    assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    caller.close()
    server.stop()
    assert policy_in(run(binlog=str(tmp_path), tubes=[MAIL]), "mail-1").max_tries == 3


# A reload


def reload(server, *tubes, **settings):
    server.wait_for(server.server.reload(Config(port=0, tubes=tubes, **settings)))


def policies_logged(caplog):
    said = [record.message for record in caplog.records]
    return [line.removeprefix("policies: ") for line in said if line.startswith("policies: ")]


@pytest.mark.parametrize("io_processes", [0, 1])
def test_a_reload_changes_the_policies_of_tubes_that_exist(run, caplog, io_processes):
    caplog.set_level("INFO")
    server = run(tubes=[MAIL], io_processes=io_processes)
    caller = Caller(server.address)
    assert caller.ask(b"watch mail-1\r\n") == b"WATCHING 2\r\n"
    assert caller.ask(b"watch bill\r\n") == b"WATCHING 3\r\n"
    settings = {"io_processes": io_processes}
    reload(server, TubeConfig(match="mail-*", max_tries=4), TubeConfig(match="bill", ttl=5), **settings)
    eventually(lambda: policy_in(server, "bill").ttl > 0, "the tube has its policy")
    assert policy_in(server, "mail-1").max_tries == 4
    assert policy_in(server, "default") is NO_POLICY
    assert policies_logged(caplog) == ['tube "mail-*": max-tries = 4, was 3', 'tube "bill" added: ttl = 5']
    reload(server, **settings)
    eventually(lambda: policy_in(server, "bill") is NO_POLICY, "it has none any more")
    assert policy_in(server, "mail-1") is NO_POLICY
    assert policies_logged(caplog)[2:] == ['tube "mail-*" removed', 'tube "bill" removed']


def test_a_server_without_policies_gets_its_first_by_a_reload(run):
    server = run()
    reload(server, DEFAULT)
    eventually(lambda: policy_in(server, "default").max_jobs == 2, "it has one")


def test_a_reload_with_the_same_policies_leaves_them_alone(run, caplog):
    """Or else each SIGHUP, for a certificate, say, would fill up what a rate allows."""
    caplog.set_level("INFO")
    server = run(tubes=[MAIL, DEFAULT])
    before = policy_in(server, "default"), server.call(lambda: server.server.broker.policy_of)
    reload(server, MAIL, DEFAULT)
    assert before == (policy_in(server, "default"), server.call(lambda: server.server.broker.policy_of))
    assert policies_logged(caplog) == []


def test_a_reload_that_fails_changes_no_policy(run, caplog):
    caplog.set_level("INFO")
    server = run(tubes=[MAIL, DEFAULT])
    before = server.server.policies
    with pytest.raises(ConfigError):
        reload(server, TubeConfig(match="*", max_jobs=9), tls_cert="nowhere.pem")
    assert server.server.policies is before
    assert policy_in(server, "default").max_jobs == 2
    assert policies_logged(caplog) == []


# The examples, at a real server. On which days and within how many hours, tests/test_examples.py shows


@pytest.mark.parametrize("name", ["payment", "confirmation", "monthly_report"])
def test_an_example_prints_what_its_docstring_promises(launch, name):
    process, path, done = tell(launch, name)
    promised = path.read_text().partition("It prints:\n\n")[2].partition('"""')[0]
    hours = r" within \d+ hours"
    assert re.sub(hours, "", done.stdout).splitlines() == [
        line.strip() for line in re.sub(hours, "", promised).strip().splitlines()
    ]
    assert process.stop() == 0


def test_the_reminders_go_out_at_a_real_server(launch):
    process, _, done = tell(launch, "reminders")
    assert sum("dear bob" in line for line in done.stdout.splitlines()) == 3
    assert "bob has not decided" in done.stdout
    assert process.stop() == 0


def tell(launch, name):
    """Run an example at a server with the policies of the examples."""
    process = launch("-p", "0", "--config", str(ROOT / "examples" / "policies.toml"))
    path = ROOT / "examples" / f"{name}.py"
    done = servers.run([sys.executable, str(path), "{}:{}".format(*process.address)])
    assert done.stderr == ""
    return process, path, done


# What docs/policies.md says that clients see, who have never heard of policies


def test_jobs_that_expired_while_no_server_was_running_are_handed_to_nobody(tmp_path, loop_factory):
    count = 15_000  # which takes more than one commit

    def start(hours):
        def make(config):
            directory = RealDirectory(tmp_path)
            boot = b"%16d" % hours
            journal = Binlog(directory, wall_clock=lambda: time.time_ns() + hours * HOUR, boot=boot)
            return Server(config, _journal=journal)

        return ServerThread(Config(port=0), loop_factory, make)

    server = start(0)
    caller = Caller(server.address)
    caller.send(b"".join(b"put-with 0 0 60 1 ttl=60 key=%d hold=9999\r\nx\r\n" % number for number in range(count)))
    for _ in range(count):
        assert caller.line().startswith(b"INSERTED ")
    caller.close()
    server.stop()
    server = start(1)
    caller = Caller(server.address)
    assert caller.ask(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    caller.close()
    server.stop()
