"""A directory in the engine behaves as one on a disk, sends no zeros, and says in one line what is wrong."""

import errno

import pytest
from memory_engine import Servers

from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import PIECE, EngineDirectory
from beanstalk_server.cluster.engine.interface import WRITE, Position
from beanstalk_server.storage.spares import find_spares


class Clock:
    """Time that passes in pauses only."""

    def __init__(self):
        self.now = 0.0
        self.pauses = 0
        self.on_pause = lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.pauses += 1
        self.on_pause()


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def clock():
    return Clock()


def opened(servers, clock=None, **options):
    clock = clock or Clock()
    sender = CommitSender(servers.lead(), 1)
    directory = EngineDirectory(
        servers.engine(), sender, "engine", clock=lambda: clock.now, sleep=clock.sleep, **options
    )
    assert directory.lock()
    return directory


def sent(servers):
    """Bytes that the engine keeps."""
    return servers.primary.used()


def test_what_is_written_is_there_when_it_was_synced(servers):
    directory = opened(servers)
    file = directory.create("a", 100)
    file.write(10, b"abc")
    assert sent(servers) == 0
    file.sync()
    assert opened(servers).open("a").read(8, 7) == b"\0\0abc\0\0"
    assert directory.open("a").size() == 100
    assert sent(servers) == 13


def test_what_was_not_synced_can_be_read_by_its_writer(servers):
    file = opened(servers).create("a")
    file.write(0, b"abc")
    assert file.read(1, 10) == b"bc"


def test_a_file_is_written_under_the_name_that_it_has_by_then(servers):
    directory = opened(servers)
    file = directory.create("spare.1", 50)
    file.write(0, b"one")
    directory.rename("spare.1", "segment.1")
    file.write(3, b"two")
    directory.sync()
    after = opened(servers)
    assert after.names() == ["segment.1"]
    assert after.open("segment.1").read(0, 6) == b"onetwo"


def test_names_are_those_of_files_and_of_directories_that_have_some(servers):
    directory = opened(servers)
    directory.make_directory("b")
    directory.create("a")
    directory.create("b/c")
    assert sorted(directory.names()) == ["a", "b"]
    assert directory.names("b") == ["c"]
    directory.remove("b/c")
    directory.remove("b")
    assert directory.names() == ["a"]
    assert directory.names("b") == []


def test_zeros_are_never_sent(servers):
    directory = opened(servers)
    file = directory.create("a", 10 << 20, fill=True)
    file.sync()
    file.write(0, b"x" * 1000)
    file.sync()
    assert sent(servers) == 1000
    file.erase(0, 10 << 20)
    file.sync()
    assert sent(servers) == 0
    assert opened(servers).open("a").size() == 10 << 20


def test_a_part_is_erased_where_that_costs_least(servers):
    directory = opened(servers)
    file = directory.create("a", 100)
    file.write(0, b"x" * 50)
    file.erase(40, 20)
    file.erase(70, 30)
    file.erase(0, 10)
    directory.sync()
    assert sent(servers) == 40
    file = opened(servers).open("a")
    assert file.read(0, 200) == bytes(10) + b"x" * 30 + bytes(60)
    assert file.size() == 100


def test_a_file_that_is_cut_and_grows_again_has_zeros(servers):
    directory = opened(servers)
    file = directory.create("a")
    file.write(0, b"abcdef")
    file.truncate(3)
    file.write(5, b"f")
    directory.sync()
    assert file.size() == 6
    assert opened(servers).open("a").read(0, 6) == b"abc\0\0f"


def test_spares_are_found_without_reading_them(servers):
    opened(servers).create("spare.3", 10 << 20).sync()
    calls = servers.calls
    spares, last = find_spares(opened(servers))
    assert [(spare.name, spare.size) for spare in spares] == [("spare.3", 10 << 20)]
    assert last == 3
    assert servers.calls == calls + 2, "only the names, and what must be there"


def test_what_is_not_there_cannot_be_opened(servers):
    with pytest.raises(FileNotFoundError):
        opened(servers).open("a")
    with pytest.raises(FileNotFoundError):
        opened(servers).rename("a", "b")


def test_what_is_there_cannot_be_created(servers):
    directory = opened(servers)
    directory.create("a")
    with pytest.raises(FileExistsError):
        directory.create("a")


def test_much_is_sent_before_anybody_syncs(servers):
    directory = opened(servers)
    file = directory.create("a")
    file.write(0, bytes(PIECE - 1))
    assert sent(servers) == 0
    file.write(PIECE - 1, b"x")
    assert sent(servers) == PIECE


# When something is wrong


def test_an_engine_that_is_away_for_a_moment_is_waited_for(servers, clock):
    directory = opened(servers, clock)
    servers.is_reachable = False

    def come_back():
        servers.is_reachable = clock.pauses >= 3

    clock.on_pause = come_back
    directory.create("a").write(0, b"abc")
    directory.sync()
    assert clock.pauses == 3
    assert sent(servers) == 3


def test_a_commit_whose_answer_is_lost_is_made_once(servers, clock):
    directory = opened(servers, clock)
    servers.lost_answers = 2
    directory.create("a").write(0, b"abc")
    directory.sync()
    assert servers.primary.lease.position == Position(1, 1)


def test_an_engine_that_stays_away_is_an_error(servers, clock):
    directory = opened(servers, clock, timeout=5.0)
    file = directory.create("a")
    file.write(0, b"abc")
    servers.is_reachable = False
    with pytest.raises(OSError, match="cannot be reached") as caught:
        file.sync()
    assert caught.value.errno == errno.ETIMEDOUT
    assert 4.0 < clock.now <= 5.0
    with pytest.raises(OSError, match="cannot be reached"):
        opened(servers, clock)


def test_what_could_not_be_sent_is_not_taken_for_durable_later(servers, clock):
    directory = opened(servers, clock)
    directory.create("a").write(0, b"abc")
    servers.is_reachable = False
    for _ in range(2):
        with pytest.raises(OSError, match="cannot be reached"):
            directory.sync()
    servers.is_reachable = True
    directory.sync()
    assert sent(servers) == 3


@pytest.mark.parametrize(
    ("fail", "error", "said", "pauses"),
    [
        (Servers.lag, OSError, "fewer than 1 replica", True),
        (lambda servers: setattr(servers, "refuses", True), PermissionError, "refuses", False),
        (Servers.lead, OSError, "another node leads in epoch 2", False),
    ],
    ids=["replicas that stay behind", "a user who may not write", "another leader"],
)
def test_what_keeps_a_change_from_being_made_is_an_error(servers, clock, fail, error, said, pauses):
    directory = opened(servers, clock)
    directory.create("a")
    fail(servers)
    with pytest.raises(error, match=said):
        directory.sync()
    assert bool(clock.pauses) == pauses


def test_an_engine_that_has_lost_commits_from_before_is_an_error(servers, clock):
    opened(servers, clock).create("a", 10).sync()
    directory = opened(servers, clock)
    servers.wipe()
    servers.renew()
    directory.create("b")
    with pytest.raises(OSError, match="has lost commits"):
        directory.sync()


def test_a_file_that_has_become_shorter_is_an_error(servers):
    directory = opened(servers)
    file = directory.create("a")
    file.write(0, b"abc")
    file.sync()
    del servers.primary.files["a"][1][1:]
    with pytest.raises(OSError, match="lost part"):
        file.read(0, 3)


def test_a_directory_that_is_only_read_cannot_be_changed(servers):
    opened(servers).create("a", 10).sync()
    directory = EngineDirectory(servers.engine(), None)
    directory.lock()
    assert directory.open("a").read(0, 10) == bytes(10)
    directory.remove("a")
    with pytest.raises(OSError, match="read-only"):
        directory.sync()


# When the engine is full


def test_a_full_engine_takes_changes_and_no_new_files():
    servers = Servers(limit=10)
    directory = opened(servers)
    file = directory.create("a", 100)
    file.write(0, bytes(20))
    file.write(20, b"more")
    file.sync()
    file.write(24, b"!")
    file.sync()
    assert sent(servers) == 25
    with pytest.raises(OSError, match="memory limit") as caught:
        directory.create("b", 100)
    assert caught.value.errno == errno.ENOSPC
    directory.sync()
    assert directory.names() == ["a"]
    assert opened(servers.copy()).names() == ["a"]
    servers.limit = 100
    directory.create("b", 100)


def test_a_creation_whose_answer_was_lost_before_the_engine_was_full_uses_no_position_twice():
    servers = Servers(limit=0)
    clock = Clock()
    directory = opened(servers, clock)
    servers.lost_answers = 1

    def fill():
        servers.primary.of(0).make([(WRITE, "other", 0, bytes(5))])

    clock.on_pause = fill
    with pytest.raises(OSError, match="memory limit"):
        directory.create("a", 100)
    directory.sync()
    assert opened(servers).names() == ["other"]
    assert servers.primary.lease.position == Position(1, 2)


def test_what_may_not_exceed_the_limit_is_an_error_where_it_would():
    servers = Servers(limit=10)
    directory = opened(servers, may_exceed=False)
    file = directory.create("a")
    file.write(0, bytes(20))
    file.sync()
    file.write(20, b"more")
    with pytest.raises(OSError, match="memory limit"):
        file.sync()


# The collected way


def test_what_is_collected_is_handed_out_and_asks_the_engine_nothing(servers):
    directory = opened(servers)
    directory.is_direct = False
    calls = servers.calls
    file = directory.create("spare.1", 100)
    file.write(0, b"abc")
    file.sync()
    directory.rename("spare.1", "segment.1")
    directory.sync()
    assert directory.take() == (
        [("c", "spare.1", 100), ("w", "spare.1", 0, b"abc"), ("m", "spare.1", "segment.1")],
        3,
    )
    assert directory.take() == ([], 0)
    assert servers.calls == calls
    assert directory.names() == ["segment.1"]


def test_nothing_is_read_meanwhile(servers):
    directory = opened(servers)
    file = directory.create("a", 10)
    file.write(0, b"a")
    directory.is_direct = False
    assert file.read(5, 5) == bytes(5), "zeros are known"
    with pytest.raises(OSError, match="cannot be read while"):
        file.read(0, 1)


def test_while_the_engine_is_full_nothing_is_created_and_somebody_is_told(servers):
    directory = opened(servers)
    directory.is_direct = False
    directory.is_full = True
    told = []
    directory.on_refusal = lambda: told.append(True)
    with pytest.raises(OSError, match="memory limit"):
        directory.create("spare.1", 100)
    assert told == [True]
    directory.create("stopped.new")
    assert directory.take()[0] == [("c", "stopped.new", 0)]


def test_a_directory_begins_anew_with_what_the_engine_has(servers):
    directory = opened(servers)
    directory.is_direct = False
    directory.create("a", 10)
    directory.adopt({})
    assert directory.take() == ([], 0)
    assert directory.all_names() == []
