"""Pages are written in slices, one at a time, and shared by those who have asked for the same."""

import pytest
from operator_site import Operators, status

from beanstalk_server.admin.scrapes import CHUNK, SLICE

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
OPEN = b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: application/openmetrics-text\r\n\r\n"
JSON = b"GET /stats.json HTTP/1.1\r\nHost: here\r\n\r\n"


class Clock:
    """A clock by which each look takes a while."""

    def __init__(self, step):
        self.now = 0
        self.step = step

    def __call__(self):
        self.now += self.step
        return self.now


def with_tubes(count, limit=1000, step=SLICE):
    """A site whose every chunk takes a slice, if nothing else is said."""
    operators = Operators(limit, Clock(step))
    tubes = operators.world.broker.tubes
    for index in range(count - len(tubes)):
        tubes.add(f"t{index}").total_jobs = 1
    return operators


def slices(operators, request=REQUEST):
    before = operators.scrapes.slices
    answer = operators.send(operators.connect(), request)
    assert status(answer) == 200
    return operators.scrapes.slices - before


def test_a_slice_ends_when_its_time_is_over():
    assert slices(with_tubes(100 * CHUNK)) == 101
    assert slices(with_tubes(100 * CHUNK, step=SLICE // 10)) == 11
    assert slices(with_tubes(100 * CHUNK, step=0)) == 1


def test_many_tubes_are_a_bounded_piece_of_work_in_each_slice():
    """Also at the end: what a slice has written is joined in it, and the sum is one tube more."""
    operators = with_tubes(20_000)
    assert slices(operators) == 20_000 // CHUNK + 1
    found = operators.ask("/metrics")[2]
    assert "beanstalkd_tubes_summed 19000\n" in found
    assert 'beanstalkd_tube_jobs_total{tube="(other)"} 19000\n' in found


def test_statistics_as_json_go_through_the_tubes_that_they_show():
    assert slices(with_tubes(20_000, limit=10 * CHUNK), JSON) == 11


def test_other_work_of_the_loop_goes_on_between_two_slices():
    operators = with_tubes(10 * CHUNK)
    transport = operators.connect()
    transport.protocol.data_received(REQUEST)
    other = operators.connect()
    for _ in range(5):
        operators.loop.go_round()
    assert not transport.written
    other.protocol.data_received(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    operators.loop.go_round()
    assert status(other.take()) == 200
    assert not transport.written
    operators.loop.settle()
    assert status(transport.take()) == 200


def test_who_asks_while_a_page_is_written_gets_the_next_one_and_shares_it():
    operators = with_tubes(10 * CHUNK)
    first = operators.connect()
    first.protocol.data_received(REQUEST)
    operators.loop.go_round()
    operators.loop.go_round()
    operators.world.connect().send(b"put 0 0 60 0\r\n\r\n")
    others = [operators.connect() for _ in range(5)]
    for each in others:
        each.protocol.data_received(REQUEST)
    operators.loop.settle()
    assert operators.scrapes.slices == 22
    pages = {each.take() for each in others}
    assert len(pages) == 1
    assert b'beanstalkd_tube_jobs_total{tube="default"} 1\n' in pages.pop()
    assert b'beanstalkd_tube_jobs_total{tube="default"} 0\n' in first.take()


def test_pages_of_several_kinds_are_written_one_after_the_other():
    operators = with_tubes(10 * CHUNK)
    callers = [operators.connect() for _ in range(6)]
    for caller, request in zip(callers, [REQUEST, OPEN, JSON] * 2, strict=True):
        caller.protocol.data_received(request)
    operators.loop.settle()
    assert [status(caller.take()) for caller in callers] == [200] * 6
    assert operators.scrapes.slices <= 11 * 5


def test_a_tube_that_moves_meanwhile_is_not_there_twice():
    operators = with_tubes(10 * CHUNK)
    tubes = operators.world.broker.tubes
    transport = operators.connect()
    transport.protocol.data_received(REQUEST)
    for _ in range(4):
        operators.loop.go_round()
    shown = tubes.at(1)
    assert tubes.drop_unneeded(shown)
    tubes.add(shown.name)
    operators.loop.settle()
    rows = [line for line in transport.take().splitlines() if line.startswith(b"beanstalkd_tube_jobs_total{")]
    assert len({line.partition(b" ")[0] for line in rows}) == len(rows)


def test_tubes_that_go_meanwhile_end_the_page_sooner():
    operators = with_tubes(10 * CHUNK)
    tubes = operators.world.broker.tubes
    transport = operators.connect()
    transport.protocol.data_received(REQUEST)
    for _ in range(4):
        operators.loop.go_round()
    while len(tubes) > 1:
        tubes.drop_unneeded(tubes.at(len(tubes) - 1))
    operators.loop.settle()
    assert status(transport.take()) == 200


def test_a_bug_is_told_and_the_next_page_is_written(caplog):
    operators = with_tubes(CHUNK)
    figures = operators.source.figures
    operators.source.figures = lambda: 1 / 0
    transport = operators.connect()
    assert status(operators.send(transport, REQUEST)) == 500
    assert "statistics cannot be shown" in caplog.text
    operators.source.figures = figures
    assert status(operators.send(transport, REQUEST)) == 200


@pytest.mark.parametrize("count", [1, 3])
def test_whoever_has_gone_meanwhile_disturbs_nobody(count):
    operators = with_tubes(10 * CHUNK)
    callers = [operators.connect() for _ in range(4)]
    for each in callers:
        each.protocol.data_received(REQUEST)
    for _ in range(6):
        operators.loop.go_round()
    for each in callers[:count]:
        each.abort()
    operators.loop.settle()
    assert [status(each.take()) for each in callers] == [0] * count + [200] * (4 - count)
    assert slices(operators) == 11
