"""The queue's interface, and the broker that implements it."""

import inspect

import pytest

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.interface import Queue

ASKED = [name for name, member in vars(Queue).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.mark.parametrize("name", ASKED)
def test_the_broker_has_each_method_of_the_queue_with_the_same_arguments(name):
    assert inspect.signature(getattr(Broker, name)) == inspect.signature(getattr(Queue, name))
    assert getattr(Broker, name) is not getattr(Queue, name)
