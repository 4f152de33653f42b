"""Other people's clients work with this server and with beanstalkd: the programs in conformance/clients."""

import pytest
from clients_of_others import COMMANDS, talk_to

from harness.servers import BEANSTALKD, imported

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("program", ["ours", BEANSTALKD], indirect=True)
def test_a_client_of_other_people_works(name, program):
    talk_to(program, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_client_of_other_people_works_through_other_processes(name):
    talk_to(imported(), name, ["--io-processes", "2"])
