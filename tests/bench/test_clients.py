"""Clients in Python are measured."""

import pytest

from bench.clients import LOADS, python_client
from bench.generator import Generator, LoadError
from bench.servers import started

pytestmark = pytest.mark.slow


@pytest.fixture
def generator():
    generator = Generator(0)
    yield generator
    generator.close()


def test_clients_are_measured_and_one_that_fails_is_named(generator):
    with started("interpreted") as server:
        for work, client in ((work, client) for work, of_work in LOADS.items() for client in of_work):
            assert min(generator.do(python_client, server, work=work, client=client, count=20).values()) > 0
        with pytest.raises(LoadError, match="nobody"):
            generator.do(python_client, server, work="put", client="nobody", count=20)
