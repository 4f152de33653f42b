"""Other people's clients work with tubes that have every policy, and are told what they know when one refuses them."""

from contextlib import closing

import pytest
from clients_of_others import COMMANDS, DIRECTORY, talk_to, tell

from conformance.compare.servers import started
from harness.caller import Caller
from harness.servers import imported

pytestmark = pytest.mark.slow

EVERY_POLICY = """
[[tube]]
match = "dead"

[[tube]]
match = "*"
max-jobs = 1000
max-bytes = 10_000_000
max-delay = "1h"
max-job-size = 65535
max-tries = 100
dead-tube = "dead"
backoff = 0.001
backoff-max = 0.002
ttl = "1h"
key-hold = "5m"
max-reserved = 1000
rate = "1000/s"
burst = 1000
"""
"""None of these limits is reached by what the clients do, but all of them are looked at."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_client_of_other_people_works_where_every_tube_has_every_policy(name, tmp_path):
    config = tmp_path / "beanstalk.toml"
    config.write_text(EVERY_POLICY)
    talk_to(imported(), name, ["--config", str(config)])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_client_of_other_people_knows_what_it_is_told_by_every_policy(name):
    put = b"put-keyed one 0 0 60 4\r\nwork\r\n"
    with (
        started(imported(), ["--config", str(DIRECTORY / "policies.toml")]) as server,
        closing(Caller(server.address)) as producer,
    ):
        producer.ask(b"use key-hold\r\n")
        assert producer.ask(put) == b"INSERTED 1\r\n"
        tell(name, server.address, "policies")
        assert producer.ask(put) == b"EXISTS 1\r\n"
