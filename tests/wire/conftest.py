"""A server in virtual time, and a client of it."""

import pytest
from virtual import World


@pytest.fixture
def world():
    world = World()
    yield world
    world.check()


@pytest.fixture
def client(world):
    return world.connect()
