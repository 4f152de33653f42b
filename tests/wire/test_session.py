"""Sessions in virtual time: turns and slices, bodies, errors, the journal, and clients that come from another server.

What each command answers is in conformance/conversations.
"""

import io
import tracemalloc

import pytest
from virtual import BreakingJournal, FullJournal, World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.broker import MOST_WATCHED, MOST_WATCHES, SLICE
from beanstalk_server.queue.costs import KICK_COST
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.transitions import FREE_WATCHES
from beanstalk_server.wire.session import ADMISSION, ROUND, SESSION_QUANTUM

# Lines


def test_a_turn_ends_when_its_quantum_is_spent(world, client):
    client.session.receive(b"list-tube-used\r\n" * (SESSION_QUANTUM + 1), world.now)
    assert client.untaken() == SESSION_QUANTUM
    assert client.session.has_more
    client.go_on()
    assert client.untaken() == SESSION_QUANTUM + 1
    client.read()
    client.put(b"x" * 60_000)
    client.session.receive(b"peek-ready\r\n" * 100, world.now)
    assert client.untaken() == 3
    client.go_on()
    assert client.untaken() == 100


def test_costly_commands_end_a_turn_sooner(world, client):
    def done_in_a_turn(data):
        client.session.receive(data, world.now)
        count = client.untaken()
        client.go_on()
        client.read()
        return count

    assert done_in_a_turn(b"stats\r\n" * 100) < SESSION_QUANTUM / 8
    assert done_in_a_turn(b"stats-tube default\r\n" * 100) < SESSION_QUANTUM / 8
    for _ in range(100):
        client.put(delay=100)
    assert done_in_a_turn(b"kick 100\r\n" + b"list-tube-used\r\n" * 100) < SESSION_QUANTUM - 90
    client.send(b"delete 1\r\n" + b"".join(b"watch t%d\r\n" % number for number in range(320)))
    client.send(b"ignore default\r\n")
    assert done_in_a_turn(b"reserve-with-timeout 0\r\n" * 100) < SESSION_QUANTUM / 9
    assert done_in_a_turn(b"list-tubes\r\n" * 100) < SESSION_QUANTUM / 2
    assert done_in_a_turn(b"list-tubes-watched\r\n" * 100) < SESSION_QUANTUM / 10


class NeverSearched(list):
    """A watch list that fails when it is searched."""

    def __contains__(self, tube):
        raise AssertionError("it is searched")

    index = __contains__


def test_a_long_watch_list_is_not_searched(world, client):
    client.send(b"".join(b"watch t%d\r\n" % number for number in range(100)))
    client.session.watched = NeverSearched(client.session.watched)
    assert client.send(b"watch t7\r\nwatch t100\r\n") == b"WATCHING 101\r\nWATCHING 102\r\n"
    assert client.send(b"ignore t7\r\nignore t100\r\nignore t100\r\nignore none\r\n").endswith(b"WATCHING 100\r\n")
    assert client.send(b"watch t7\r\nignore t99\r\nignore t8\r\n").endswith(b"WATCHING 99\r\n")
    names = client.send(b"list-tubes-watched\r\n").split(b"\n- ")[1:]
    assert names[:10] == [b"default", *[b"t%d" % number for number in range(8)], b"t98"]
    assert names[-1] == b"t97\n\r\n"


def test_the_list_of_all_tubes_is_written_again_only_where_it_has_changed(world, client):
    def work():
        client.session.receive(b"list-tubes\r\n", world.now)
        return client.session.cost - (len(client.read()) >> 10)

    for number in range(3000):
        client.send(b"watch tube-%d\r\n" % number)
    assert work() < 20, "full pages are written already"
    assert work() < 3
    client.send(b"watch another\r\nignore tube-1000\r\n")
    assert work() < 20
    world.check()
    for number in range(3000):
        client.send(b"ignore tube-%d\r\n" % number)
        if number % 500 == 0:
            world.check()
    assert client.send(b"list-tubes\r\n") == b"OK 24\r\n---\n- default\n- another\n\r\n"


def test_making_a_tube_costs_more_than_using_one(world, client):
    client.session.receive(b"".join(b"use t%d\r\n" % number for number in range(SESSION_QUANTUM)), world.now)
    assert client.untaken() < SESSION_QUANTUM / 4
    client.go_on()


def wide(world, count=4000):
    """A client that watches many tubes."""
    client = world.connect()
    client.send(b"".join(b"watch t%d\r\n" % number for number in range(count)))
    return client


def reserving(clients):
    """The same clients, when each has given the command."""
    for client in clients:
        client.send(b"reserve\r\n")
    return clients


def test_a_turn_ends_sooner_when_it_serves_clients_that_watch_many_tubes(world, client):
    waiting = reserving([wide(world) for _ in range(10)])
    client.session.receive(b"put 0 0 60 1\r\nx\r\n" * 10, world.now)
    assert client.untaken() == 1, "each of them is taken from 4,000 waiting lists"
    client.go_on()
    assert client.read().count(b"INSERTED") == 10
    world.settle()
    assert [other.read()[:8] for other in waiting] == [b"RESERVED"] * 10


def test_a_turn_ends_sooner_when_its_client_waits_in_many_tubes_over_and_over(world):
    client = wide(world)
    client.session.receive(b"reserve-with-timeout 1\r\n", world.now)
    assert client.session.budget < -400
    client.session.end_input()
    client.session.run(world.now)
    assert client.session.budget < -300
    assert client.read() == b"TIMED_OUT\r\n"


def test_clients_that_wait_in_many_tubes_time_out_in_slices(world):
    waiting = [wide(world) for _ in range(10)]
    for other in waiting:
        other.session.receive(b"reserve-with-timeout 1\r\n", world.now)
    world.now += 2_000_000_000
    world.broker.advance(world.now)
    assert world.broker.waiting >= 8
    world.settle()
    assert [other.read() for other in waiting] == [b"TIMED_OUT\r\n"] * 10


def test_a_kick_that_serves_clients_of_many_tubes_is_done_in_slices(world, client):
    for _ in range(10):
        client.put(delay=60)
    reserving([wide(world) for _ in range(10)])
    client.session.receive(b"kick 10\r\n", world.now)
    assert world.broker.delayed >= 8
    world.settle()
    assert client.read() == b"KICKED 10\r\n"
    assert world.broker.reserved == 10


def test_the_jobs_of_a_client_that_is_gone_go_to_clients_of_many_tubes_in_slices(world, client):
    for _ in range(10):
        client.put()
    holder = world.connect()
    holder.send(b"reserve\r\n" * 10)
    waiting = reserving([wide(world) for _ in range(10)])
    holder.session.disconnect(world.now)
    assert world.broker.waiting >= 8
    world.settle()
    assert [other.read()[:8] for other in waiting] == [b"RESERVED"] * 10


def test_timers_beyond_the_budget_are_handled_at_once_afterwards(world, client):
    for _ in range(3):
        client.put(delay=1)
    world.now += 2_000_000_000
    while not world.broker.ready:
        assert world.broker.next_event() <= world.now
        world.broker.advance(world.now, 1)
    assert world.broker.ready == 1
    assert world.broker.next_event() <= world.now
    assert client.yaml(b"stats-job 3")["time-left"] == "0", "overdue, but not negative"
    world.settle()
    assert world.broker.ready == 3


# put


def test_nothing_is_kept_of_a_body_of_4_gib(client):
    assert client.send(b"put 0 0 1 4294967295\r\n") == b""
    left = 4294967297
    piece = b"x" * (1 << 22)
    while left:
        sent = piece[:left]
        left -= len(sent)
        assert client.send(sent) == (b"" if left else b"JOB_TOO_BIG\r\n")
        assert client.session.input_size <= 1, "half of a CR LF, perhaps"
        assert not client.session.framer._body
    assert client.put() == 1


def test_memory_for_a_body_is_taken_as_it_arrives():
    client = World(max_job_size=1 << 30).connect()
    assert client.send(b"put 0 0 1 1073741824\r\nabc") == b""
    assert client.session.framer._body.getvalue() == b"abc"


class NoRoom(io.BytesIO):
    """Stands for a body when memory is short."""

    def write(self, piece):
        raise MemoryError


def test_a_large_body_in_pieces_is_in_memory_once():
    client = World(max_job_size=1 << 30).connect()
    size = 16 << 20
    piece = b"x" * (1 << 18)
    tracemalloc.start()
    try:
        client.send(b"put 0 0 60 %d\r\n" % size)
        for _ in range(size // len(piece)):
            client.send(piece)
        assert client.send(b"\r\n") == b"INSERTED 1\r\n"
        assert tracemalloc.get_traced_memory()[1] < size * 1.3
    finally:
        tracemalloc.stop()
    assert client.session.queue.jobs[1].body == b"x" * size


def test_a_body_that_does_not_fit_into_memory_is_dropped_to_its_end(world, client):
    assert client.send(b"put 0 0 1 20\r\n") == b""
    client.session.framer._body = NoRoom()
    assert client.send(b"0123456789") == b""
    assert client.send(b"0123456789\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert client.send(b"put 0 0 1 20\r\n0123456789") == b""
    client.session.framer._body = NoRoom(b"0123456789")
    assert client.send(b"0123456789\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert client.send(b"put 0 0 1 65536\r\n" + b"x" * 65538) == b"JOB_TOO_BIG\r\n"
    assert client.put() == 3
    assert client.yaml(b"stats")["total-jobs"] == "1"


def test_drain_mode_begins_and_ends_by_command_and_the_log_says_so(client, caplog):
    caplog.set_level("INFO")
    assert client.send(b"drain\r\nput 0 0 1 1\r\nx\r\n") == b"DRAINING\r\nDRAINING\r\n"
    assert client.yaml(b"stats")["draining"] == "true"
    assert client.send(b"undrain\r\nput 0 0 1 1\r\nx\r\n").startswith(b"NOT_DRAINING\r\nINSERTED ")
    assert client.yaml(b"stats")["draining"] == "false"
    assert caplog.messages == ["draining: new jobs are refused", "no longer draining: new jobs are accepted"]


def test_put_without_room_changes_nothing():
    world = World(FullJournal("put"))
    client = world.connect()
    assert client.send(b"put 0 0 1 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert client.yaml(b"stats")["total-jobs"] == "0"
    assert client.send(b"peek 1\r\n") == b"NOT_FOUND\r\n"
    world.check()


# reserve


def test_a_wait_that_ends_with_a_job_leaves_no_timer(world, client):
    worker = world.connect()
    worker.send(b"reserve-with-timeout 5\r\n")
    client.put()
    worker.read()
    worker.send(b"delete 1\r\n")
    world.sleep(10)
    assert worker.read() == b""
    assert world.is_idle()


def test_what_was_sent_before_a_half_close_is_done_over_many_turns(world, client):
    client.session.receive(b"list-tube-used\r\n" * 3 * SESSION_QUANTUM, world.now)
    assert client.session.has_more
    assert client.shut_down() == b"USING default\r\n" * 3 * SESSION_QUANTUM
    assert client.session.closed


def test_a_half_close_waits_for_the_answer_to_a_kick(world, client):
    for _ in range(600):
        client.put(delay=100)
    client.session.receive(b"kick 600\r\n", world.now)
    client.session.receive(b"list-tube-used\r\n", world.now)  # comes while the kick is under way
    client.session.end_input()
    client.go_on()
    assert client.read() == b""
    assert not client.session.closed
    world.settle()
    assert client.read() == b"KICKED 600\r\nUSING default\r\n"
    assert client.session.closed


def test_nothing_is_kept_of_what_comes_after_a_quit(client):
    assert client.send(b"put 0 0 60 1\r\nx\r\nquit\r\nlist-tube-used\r\n") == b"INSERTED 1\r\n"
    assert client.session.closed
    assert client.session.input_size == 0
    for _ in range(3):
        assert client.send(b"list-tube-used\r\n") == b""
    assert client.session.input_size == 0


def test_input_that_comes_in_pieces_during_a_wait_is_joined_once(world, client):
    client.send(b"reserve\r\n")
    sent = b"list-tube-used\r\n" * 1000
    for place in range(0, len(sent), 2):
        client.send(sent[place : place + 2])
    assert len(client.session.framer._queued) > len(sent) / 2 - 20, (
        "otherwise, each piece costs a copy of all before it"
    )
    assert client.session.input_size == len(sent)
    world.connect().put()
    assert client.read() == b"RESERVED 1 1\r\nx\r\n" + b"USING default\r\n" * 1000


@pytest.mark.parametrize("user", [None, User("u", produce=["*"])])
@pytest.mark.parametrize("target", [b"/", b"/" + b"a" * 300, b"/" + b"a" * 1000], ids=len)
def test_what_a_browser_sends_puts_no_job(world, user, target):
    request = b"POST %b HTTP/1.1\r\nHost: localhost:11300\r\n\r\n" % target
    for pieces in ([request + b"put 0 0 60 1\r\nx\r\n"], [request, b"put 0 0 60 1\r\nx\r\n"]):
        client = world.connect(user)
        assert b"".join(map(client.send, pieces)) == b"UNKNOWN_COMMAND\r\n"
        assert client.session.closed and client.session.speaks_http
    assert not world.broker.jobs


def test_a_word_that_is_a_method_of_http_is_an_unknown_command(client):
    assert client.send(b"GET\r\npost / HTTP/1.1\r\nGETTER x\r\n") == b"UNKNOWN_COMMAND\r\n" * 3
    assert not client.session.closed


# What a worker does with a job


def test_a_kick_of_more_jobs_than_a_slice_is_answered_when_it_is_done(world, client):
    other = world.connect()
    for _ in range(1300):
        client.put(delay=100)
    client.session.receive(b"kick 1200\r\nlist-tube-used\r\n", world.now)
    assert client.read() == b""
    assert other.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert client.read() == b"KICKED 1200\r\nUSING default\r\n"
    assert client.yaml(b"stats-tube default")["current-jobs-delayed"] == "100"


@pytest.mark.parametrize(("is_buried", "price"), [(True, 1), (False, KICK_COST)])
def test_what_a_kick_does_at_once_is_charged_and_delayed_jobs_have_another_price(world, client, is_buried, price):
    for number in range(1, 601):
        client.put(delay=0 if is_buried else 100)
        if is_buried:
            client.send(b"reserve-job %d\r\nbury %d 0\r\n" % (number, number))
    client.session.receive(b"kick 600\r\n", world.now)
    kicked = world.broker.ready
    assert kicked == SLICE // price
    assert client.session.cost >= kicked * price, "though there is no answer yet"
    world.settle()
    assert client.read() == b"KICKED 600\r\n"


def test_a_kick_ends_although_a_worker_buries_again_what_it_kicks(world, client):
    worker = world.connect()
    for _ in range(600):
        client.put()
    worker.send(b"reserve\r\n" * 600 + b"".join(b"bury %d 0\r\n" % number for number in range(1, 601)))
    client.session.receive(b"kick 4294967295\r\n", world.now)
    for number in range(1, 101):
        worker.session.receive(b"reserve-job %d\r\nbury %d 0\r\n" % (number, number), world.now)
        worker.go_on()
    world.settle()
    assert client.read() == b"KICKED 600\r\n"


def test_a_kick_that_fails_in_a_later_slice_is_answered(caplog):
    journal = BreakingJournal()
    world = World(journal)
    client = world.connect()
    for _ in range(600):
        client.put(delay=100)
    client.session.receive(b"kick 600\r\nlist-tube-used\r\n", world.now)
    journal.breaks = 1
    with pytest.raises(RuntimeError):
        world.settle()
    world.settle()
    assert client.read() == b"INTERNAL_ERROR\r\nUSING default\r\n"
    world.check()


def test_a_client_may_disconnect_during_its_kick(world, client):
    for _ in range(1300):
        client.put(delay=100)
    client.session.receive(b"kick 1200\r\n", world.now)
    client.disconnect()
    assert world.connect().yaml(b"stats")["current-jobs-ready"] == "1200"


def test_a_client_that_waits_in_many_tubes_leaves_them_in_slices_and_is_served_no_more(world, client):
    gone = wide(world)
    gone.send(b"reserve\r\n")
    client.send(b"use t3999\r\nwatch t3999\r\nignore default\r\n")
    before = len(world.broker.tubes)
    gone.session.disconnect(world.now)
    world.check()
    assert before - 512 <= len(world.broker.tubes) < before
    assert world.broker.waiting == 0
    assert client.send(b"reserve\r\n") == b""
    world.check()
    assert client.session.waiting
    other = world.connect()
    other.session.receive(b"use t3998\r\nput 0 0 60 1\r\nx\r\nuse t3999\r\nput 0 0 60 1\r\ny\r\n", world.now)
    world.check()
    world.settle()
    assert client.read() == b"RESERVED 2 1\r\ny\r\n"
    assert not gone.session.reserved
    assert other.send(b"list-tubes\r\n").endswith(b"\r\n---\n- default\n- t3999\n- t3998\n\r\n")
    assert other.yaml(b"stats-tube t3998")["current-waiting"] == "0"
    assert other.yaml(b"stats-tube t3999")["current-watching"] == "1"


def test_a_tube_that_is_left_in_slices_may_be_used_and_paused_meanwhile(world, client):
    gone = wide(world)
    gone.send(b"reserve\r\n")
    gone.session.disconnect(world.now)
    client.session.receive(b"use t3000\r\npause-tube t3000 10\r\nput 0 0 60 1\r\nx\r\nwatch t3000\r\n", world.now)
    world.check()
    world.settle()
    assert client.read().endswith(b"WATCHING 2\r\n")
    assert client.send(b"reserve\r\n") == b""
    world.sleep(11)
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"
    assert len(world.broker.tubes) == 2


def test_a_client_that_held_thousands_of_jobs_gives_them_back_in_slices(world, client):
    holder = world.connect()
    for _ in range(1300):
        client.put()
    holder.send(b"reserve\r\n" * 1300)
    holder.session.disconnect(world.now)
    world.check()
    assert 1300 - 512 <= world.broker.reserved < 1300
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert world.broker.ready == 1300


def test_jobs_of_a_client_that_is_gone_may_time_out_and_be_reserved_before_they_are_given_back(world, client):
    holder = world.connect()
    for ttr in (1, 60):
        client.send(b"put 0 0 %d 1\r\nx\r\n" % ttr * 1000)
    holder.send(b"reserve\r\n" * 2000)
    holder.session.disconnect(world.now)
    world.check()
    world.now += 2_000_000_000
    worker = world.connect()
    while world.broker.next_event() <= world.now:
        world.broker.advance(world.now, 100)
        worker.session.receive(b"reserve-with-timeout 0\r\n", world.now)
        world.check()
    held = [job.id for job in worker.session.reserved]
    assert held[0] == 1
    assert len(set(held)) == len(held) == world.broker.reserved
    assert world.broker.ready == 2000 - len(held)
    assert 0 < world.broker.timeouts <= 1000


# Tubes


def test_a_pause_that_is_ended_early_serves_all_waiting_clients(world, client):
    workers = reserving([world.connect() for _ in range(600)])
    client.send(b"pause-tube default 3600\r\n")
    for _ in range(600):
        client.put()
    client.session.receive(b"pause-tube default 0\r\n", world.now)
    world.check()
    world.settle()
    assert [worker.read() for worker in workers] == [b"RESERVED %d 1\r\nx\r\n" % n for n in range(1, 601)]


def test_no_client_overtakes_those_that_wait_while_they_are_served_after_a_pause(world, client):
    workers = reserving([world.connect() for _ in range(1300)])
    client.send(b"pause-tube default 3600\r\n")
    for _ in range(1301):
        client.put()
    client.session.receive(b"pause-tube default 0\r\n", world.now)
    newcomer = world.connect()
    newcomer.session.receive(b"reserve\r\n", world.now)
    assert newcomer.read() == b""
    world.settle()
    assert newcomer.read() == b"RESERVED 1301 1\r\nx\r\n"
    assert workers[-1].read() == b"RESERVED 1300 1\r\nx\r\n"


def test_a_pause_with_many_waiting_clients_ends_in_slices(world, client):
    workers = reserving([world.connect() for _ in range(1200)])
    client.send(b"pause-tube default 1\r\n")
    for _ in range(1100):
        client.put()
    world.now += 2_000_000_000
    world.broker.advance(world.now)
    world.check()
    assert 0 < world.broker.reserved < 1100
    client.put(priority=1)  # must not overtake the jobs that are ready
    world.check()
    world.settle()
    assert [worker.read() for worker in workers[:1100]] == [b"RESERVED %d 1\r\nx\r\n" % n for n in range(1, 1101)]
    assert workers[1100].read() == b"RESERVED 1101 1\r\nx\r\n"


# peek and statistics


def test_times_of_the_processor_are_written_without_an_exponent(world, client):
    world.info.cpu_times = lambda: (1.5, 0.000001)
    found = client.yaml(b"stats")
    assert (found["rusage-utime"], found["rusage-stime"]) == ("1.500000", "0.000001")


def test_every_command_is_counted_when_it_is_well_formed(client):
    large = b"x" * 99_999_999 + b"\r\n"
    client.send(b"put 0 0 1 1\r\nx\r\nput 0 0 1 99999999 x\r\n" + large)
    lines = (
        "peek 1|peek-ready|peek-delayed|peek-buried|reserve|reserve-with-timeout 0|delete 9|release 9 0 0|use a|"
        "watch a|ignore a|bury 9 0|kick 1|touch 9|stats-job 9|stats-tube a|list-tubes|list-tube-used|"
        "list-tubes-watched|pause-tube a 1|pause-tube -a 1|cancel 9|cancel-keyed k|reschedule 9 1|reschedule-keyed k 1|"
        "peek-keyed k|reserve-batch 1 0|clear-tube a|put-keyed k 0 0 1 99999999|replace-keyed k 0 0 1 99999999|"
        "put-with 0 0 1 99999999 tries=2|redrive a 5|list-jobs a ready 0 1|stats-tubes - 1|"
        "list-clients|move-jobs a ready b 1|stats-group g|cancel-group g|cancel-reserve|"
        "put-batch 0 0 1 99999999|delete-batch 9|release-batch 0 0 9|touch-batch 9|reserve-mode priority|"
        "touch-all|reprioritize 9 1|reprioritize-keyed k 1|give-back 9|save 9 99999999|"
        "client-name a|list-extensions|undrain|drain"
    )
    for line in lines.split("|"):
        client.send(line.encode() + b"\r\n" + (large if "999" in line else b""))
    client.send(b"cancel x\r\nstats-tubes a 0\r\nreschedule 1\r\nreserve-batch 0 0\r\nclear-tube -\r\n")
    client.send(b"put-keyed - 0 0 1 0\r\n\r\nlist-jobs a ready 0 0\r\n")
    client.send(b"delete x\r\nput 0 0 1 1 \r\nreserve \r\nrelease 1\r\nkick\r\nuse -\r\n")
    stats = client.yaml(b"stats")
    counts = {key: int(value) for key, value in stats.items() if key.startswith("cmd-")}
    twice = {"cmd-put": 3, "cmd-pause-tube": 2}
    assert counts == {key: twice.get(key, 1) for key in counts}


# What goes wrong


def test_a_bug_in_a_command_answers_internal_error_and_affects_no_other_client(caplog):
    journal = BreakingJournal()
    world = World(journal)
    client, other = world.connect(), world.connect()
    for _ in range(4):
        client.put()
    client.send(b"reserve\r\nreserve\r\nreserve\r\nbury 3 0\r\n")
    journal.breaks = 5
    sent = b"put 0 0 1 1\r\nx\r\ndelete 1\r\nrelease 1 0 0\r\nbury 2 0\r\nkick 1\r\nlist-tube-used\r\n"
    assert client.send(sent) == b"INTERNAL_ERROR\r\n" * 5 + b"USING default\r\n"
    assert "RuntimeError: broken" in caplog.text
    world.check()
    assert other.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\nx\r\n"
    assert other.send(b"delete 1\r\n") == b"DELETED\r\n"


def test_no_command_is_done_for_a_client_that_does_not_read(world, client):
    client.session.pause_output()
    assert client.send(b"list-tube-used\r\n") == b""
    client.session.resume_output()
    client.go_on()
    assert client.read() == b"USING default\r\n"


def test_commands_can_be_logged(world, caplog):
    caplog.set_level("INFO")
    world.connect().session.logs_commands = True
    caller = world.connect()
    caller.session.logs_commands = True
    caller.session.name = "somebody"
    caller.send(b"use caf\xe9\x1b\r\nuse\x1b\r\n")
    assert "somebody < use caf\\xe9\\x1b" in caplog.text
    assert "somebody < unknown command of 4 bytes" in caplog.text


# What the journal admits


@pytest.mark.parametrize(
    ("admits", "waits", "goes_on"),
    [
        (NONE, [b"delete 1", b"cancel 1", b"release 1 0 0", b"kick 5", b"reserve-job 1"], [b"peek 1", b"stats-job 1"]),
        (DELETIONS, [b"release 1 0 0", b"bury 1 0", b"kick-job 1", b"reschedule 1 5"], [b"cancel 1", b"delete 1"]),
    ],
)
def test_a_command_that_the_journal_does_not_admit_waits(admits, waits, goes_on):
    world = World()
    caller = world.connect()
    assert caller.put() == 1
    world.broker.set_admission(admits)
    for command in goes_on:
        assert caller.send(command + b"\r\n"), command
    for command in waits:
        waiting = world.connect()
        assert waiting.send(command + b"\r\nlist-tube-used\r\n") == b"", command
        assert waiting.session.wait == ADMISSION
        world.broker.set_admission(ALL)
        waiting.go_on()
        assert waiting.read().endswith(b"USING default\r\n")
        world.broker.set_admission(admits)


def test_a_put_that_the_journal_does_not_admit_waits_when_its_body_ends():
    world = World()
    caller = world.connect()
    world.broker.set_admission(NONE)
    assert caller.send(b"put 0 0 60 5\r\nab") == b""
    assert caller.session.wait != ADMISSION
    assert caller.send(b"cde\r\n") == b""
    assert caller.session.wait == ADMISSION
    world.broker.set_admission(ALL)
    caller.go_on()
    assert caller.read() == b"INSERTED 1\r\n"


def test_a_client_that_does_not_read_is_not_blocked_by_the_journal():
    """It goes on when it reads its replies again."""
    world = World()
    caller = world.connect()
    world.broker.set_admission(NONE)
    caller.send(b"delete 1\r\n")
    assert caller.session.wait == ADMISSION
    caller.session.pause_output()
    world.broker.set_admission(ALL)
    caller.go_on()
    assert caller.session.wait != ADMISSION
    caller.session.resume_output()
    caller.go_on()
    assert caller.read() == b"NOT_FOUND\r\n"


def test_a_kick_is_suspended_between_two_jobs_and_goes_on():
    world = World()
    caller = world.connect()
    for _ in range(1000):
        caller.put(delay=100)
    caller.session.receive(b"kick 1000\r\n", world.now)
    world.broker.set_admission(NONE)
    world.settle()
    assert caller.read() == b""
    assert world.is_idle() or world.broker.suspended
    assert 0 < world.broker.ready < 1000
    world.check()
    world.broker.set_admission(ALL)
    world.settle()
    assert caller.read() == b"KICKED 1000\r\n"
    world.check()


# What clients may watch


def watch_many(client, first, count):
    return client.send(b"".join([b"watch t%d\r\n" % number for number in range(first, first + count)]))


def test_a_client_watches_a_bounded_number_of_tubes(world, client):
    assert watch_many(client, 1, MOST_WATCHED - 1).endswith(b"WATCHING %d\r\n" % MOST_WATCHED)
    assert client.send(b"watch more\r\nwatch t1\r\n") == b"OUT_OF_MEMORY\r\nWATCHING %d\r\n" % MOST_WATCHED
    assert b"more" not in client.send(b"list-tubes\r\n"), "no tube is made"
    assert client.send(b"ignore t1\r\nwatch more\r\n").endswith(b"\r\nWATCHING %d\r\n" % MOST_WATCHED)


def test_all_clients_watch_a_bounded_number_of_tubes_beyond_the_first_of_each(world, client):
    watch_many(client, 1, 99)
    assert world.broker.watches == 100 - FREE_WATCHES
    world.broker.watches += MOST_WATCHES - 100  # as if others watched the rest, but for a few
    assert watch_many(client, 100, FREE_WATCHES + 1).endswith(b"WATCHING 116\r\nOUT_OF_MEMORY\r\n")
    other = world.connect()
    assert watch_many(other, 1, FREE_WATCHES).endswith(b"WATCHING 16\r\nOUT_OF_MEMORY\r\n")
    assert client.send(b"ignore t1\r\n") == b"WATCHING 115\r\n"
    assert other.send(b"watch t16\r\n") == b"WATCHING 17\r\n"
    other.disconnect()
    client.disconnect()
    assert world.broker.watches == MOST_WATCHES - 100


def test_a_restored_client_watches_what_it_has_watched_before(world, client):
    world.broker.watches = MOST_WATCHES
    client.session.restore("default", [f"t{number}" for number in range(100)])
    assert len(client.session.watched) == 100


# A client that another server has served before


@pytest.mark.parametrize(
    "watched",
    [["default"], ["default", "a", "b"], ["a", "default"], ["b", "a"], ["a"], [f"tube-{n}" for n in range(100)], []],
)
def test_a_client_is_restored_with_the_tubes_that_it_uses_and_watches(world, client, watched):
    client.session.restore("elsewhere", watched)
    assert client.send(b"list-tube-used\r\n") == b"USING elsewhere\r\n"
    assert [tube.name for tube in client.session.watched] == watched
    world.check()
    client.disconnect()


@pytest.mark.parametrize(
    ("consume", "left"), [(["*"], ["a", "b", "c"]), (["a", "c"], ["a", "c"]), (["default"], []), ([], [])]
)
def test_a_restored_client_watches_only_what_its_user_may_consume_from(world, consume, left):
    client = world.connect(User("ann", consume=consume))
    client.session.restore("default", ["a", "b", "c"])
    assert sorted(tube.name for tube in client.session.watched) == left


def test_more_input_does_not_end_the_wait_for_another_round(world, client):
    session = client.session
    for data in (b"stats\r\n", b"peek"):
        session.sees_hangups = False  # as the connection says when something comes
        session.receive(data, world.now)
        assert session.wait == ROUND and session.take_replies() == b""
    session.sees_hangups = True
    session.run(world.now)
    assert session.take_replies().startswith(b"OK ")
