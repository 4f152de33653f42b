"""The relay of an outbox, on SQLite with SQLAlchemy, and with a server in memory."""

import contextlib
import json
import threading

import pytest
import sqlalchemy
from beanstalk_client.errors import (
    BadFormatError,
    BuriedError,
    DrainingError,
    ExistsError,
    ForbiddenError,
    JobTooBigError,
    NotFoundError,
    OutOfMemoryError,
    TooLateError,
    UnauthorizedError,
    UnsupportedError,
)
from beanstalk_client.outbox.relay import ROUNDS, Relay
from beanstalk_client.outbox.sqlalchemy import Outbox, SqlalchemyDatabase, outbox_table
from beanstalk_client.outbox.status import KEY, TUBE, Status
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from outbox_servers import FakeServer

from harness.waiting import eventually

METADATA = sqlalchemy.MetaData()
ROWS = outbox_table(METADATA)


class Shop:
    """A program with an outbox, its database and its server."""

    def __init__(self, path):
        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        METADATA.create_all(self.engine)
        self.outbox = Outbox()
        self.server = FakeServer()
        self.moved = 0.0

    @contextlib.contextmanager
    def transaction(self, tube="mail"):
        with self.engine.begin() as connection, self.outbox.using(connection):
            yield self.outbox.client(tube)

    def put(self, *bodies, tube="mail", **options):
        with self.transaction(tube) as client:
            for body in bodies:
                client.put_with(body, **options)

    @property
    def rows(self):
        with self.engine.connect() as connection:
            return list(connection.execute(sqlalchemy.select(ROWS).order_by(ROWS.c.id)))

    def clock(self):
        with self.engine.connect() as connection:
            (now,) = connection.execute(sqlalchemy.text("SELECT (julianday('now') - 2440587.5) * 86400.0")).one()
        return now + self.moved

    def relay(self, **options):
        return Relay(SqlalchemyDatabase(self.engine), self.server.connect, clock=self.clock, **options)

    @property
    def bodies(self):
        return [body for _, _, body in self.server.puts]


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.engine.dispose()


def test_sends_what_was_committed_and_deletes_its_rows(shop):
    shop.put(b"a", b"b")
    with contextlib.suppress(ZeroDivisionError), shop.transaction() as client:
        client.put(b"never")
        raise ZeroDivisionError
    shop.put(b"c", tube="letters")
    shop.relay().run_once()
    assert shop.server.puts == [("mail", None, b"a"), ("mail", None, b"b"), ("letters", None, b"c")]
    assert shop.rows == []


def test_sends_more_than_a_batch(shop):
    shop.put(*(b"%d" % number for number in range(7)))
    shop.relay(batch=2).run_once()
    assert shop.bodies == [b"%d" % number for number in range(7)]


def test_sends_changes_of_jobs_in_the_order_of_their_key(shop):
    with shop.transaction() as client:
        client.put_with(b"a", key="order-1")
        client.reschedule_keyed("order-1", 30)
        client.reprioritize_keyed("order-1", 5)
        client.cancel_keyed("order-1")
        client.cancel(17)
    shop.relay().make_pass(shop.server.connect())
    names = ["cancel", "reschedule_keyed", "reprioritize_keyed", "cancel_keyed"]  # what has no key waits for none
    assert [name for _, name, _ in shop.server.changes] == names
    assert shop.server.changes[-1] == ("mail", "cancel_keyed", {"key": "order-1"})
    assert shop.rows == []


def test_a_pass_sends_some_rows_of_a_key(shop):
    bodies = [b"%d" % number for number in range(ROUNDS + 5)]
    shop.put(*bodies, key="order-1")
    relay = shop.relay()
    assert relay.make_pass(shop.server.connect())
    assert shop.bodies == bodies[:ROUNDS]
    relay.run_once()
    assert shop.bodies == bodies


def test_a_key_with_a_row_that_is_sent_later_waits(shop):
    """A row before it had failed, and is retried."""
    shop.put(b"a", b"b", b"c", key="order-1")
    with shop.engine.begin() as connection:
        connection.execute(ROWS.update().where(ROWS.c.body == b"b").values(retry_at=shop.clock() + 10))
    relay = shop.relay()
    relay.run_once()
    assert shop.bodies == []
    shop.moved = 11
    relay.run_once()
    assert shop.bodies == [b"a", b"b", b"c"]


def test_counts_a_delay_from_the_put(shop):
    shop.put(b"a", delay=100)
    shop.put(b"b", delay=5)
    shop.moved = 10
    shop.relay().run_once()
    first, second = shop.server.delays
    assert 89 < first <= 90
    assert second == 0


def test_a_put_whose_reply_is_lost_is_made_once(shop):
    shop.put(b"a", b"b", b"c")
    shop.server.answers = 1
    relay = shop.relay()
    with pytest.raises(ConnectionError):
        relay.run_once()
    assert shop.bodies == [b"a", b"b", b"c"]
    assert [row.body for row in shop.rows] == [b"b", b"c"]
    relay.run_once()
    assert shop.bodies == [b"a", b"b", b"c"]
    assert shop.rows == []


@pytest.mark.parametrize("error", [ExistsError(3), TooLateError(), NotFoundError()])
def test_drops_what_is_too_late(shop, error, caplog):
    caplog.set_level("INFO", "beanstalk_client.outbox")
    shop.put(b"a", key="order-1")
    shop.server.refuses[b"a"] = error
    relay = shop.relay()
    relay.run_once()
    assert shop.rows == []
    assert [record.event for record in caplog.records] == ["outbox-dropped"]
    assert relay.status().dropped == 1


def test_a_buried_job_was_sent(shop):
    shop.put(b"a")
    shop.server.refuses[b"a"] = BuriedError(1)
    relay = shop.relay()
    relay.run_once()
    assert (shop.rows, relay.status().sent) == ([], 1)


@pytest.mark.parametrize("error", [JobTooBigError(), BadFormatError(), ForbiddenError()])
def test_a_refusal_that_stays_fails_its_row_only(shop, error, caplog):
    shop.put(b"bad", key="order-1")
    shop.put(b"good", key="order-1")
    shop.server.refuses[b"bad"] = error
    relay = shop.relay()
    relay.run_once()
    (row,) = shop.rows
    assert (row.body, row.failed.partition(":")[0]) == (b"bad", type(error).__name__)
    assert shop.bodies == [b"good"]
    assert [record.event for record in caplog.records] == ["outbox-failed"]
    report = json.loads(shop.server.others["mail.errors", f"outbox-default-{row.id}"])
    assert (report["row"], report["tube"], report["error"]) == (row.id, "mail", row.failed)
    del shop.server.refuses[b"bad"]
    assert relay.retry_failed() == 1
    relay.run_once()
    assert shop.bodies == [b"good", b"bad"]


def test_a_tube_that_is_refused_fails_its_rows_and_no_others(shop):
    shop.put(b"a", tube="secret")
    shop.put(b"b")
    shop.server.refuses["secret"] = ForbiddenError()
    shop.relay().run_once()
    assert [row.tube for row in shop.rows if row.failed] == ["secret"]
    assert shop.server.puts == [("mail", None, b"b")]


def test_a_token_that_is_refused_fails_no_row(shop):
    shop.put(b"a")
    shop.server.refuses["mail"] = UnauthorizedError()
    with pytest.raises(UnauthorizedError):
        shop.relay().run()
    assert [row.failed for row in shop.rows] == [None]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"command": "fly"}, "ValueError: unknown command 'fly'"),
        *[({"arguments": each}, "") for each in ("[1]", "null", "5", "{", '{"delay": {}}', '{"once_ttl": 1e999}')],
        ({"arguments": "[" * 100_000}, "RecursionError"),
    ],
)
def test_a_row_that_cannot_be_read_fails_and_blocks_no_other(shop, values, told):
    """Another version of this package has written it, or a person."""
    shop.put(b"a")
    with shop.engine.begin() as connection:
        connection.execute(ROWS.update().values(**values))
    shop.put(b"b")
    shop.relay().run_once()
    assert [row.failed[: len(told)] for row in shop.rows] == [told]
    assert shop.bodies == [b"b"]


@pytest.mark.parametrize("error", [ForbiddenError(), ValueError("the name of the tube is too long")])
def test_a_report_that_is_refused_is_logged(shop, caplog, error):
    shop.put(b"a")
    shop.server.refuses |= {b"a": JobTooBigError(), "mail.errors": error}
    shop.relay().run_once()
    assert [record.event for record in caplog.records] == ["outbox-failed", "outbox-report-refused"]


@pytest.mark.parametrize("error", [DrainingError(), OutOfMemoryError()])
def test_a_refusal_that_may_change_delays_its_key_only(shop, error):
    shop.put(b"a", key="order-1")
    shop.put(b"b", key="order-1")
    shop.put(b"c", key="order-2")
    shop.server.refuses[b"a"] = error
    relay = shop.relay()
    relay.run_once()
    assert shop.bodies == [b"c"]
    shop.server.refuses.clear()
    relay.run_once()
    assert shop.bodies == [b"c"]
    assert len(shop.rows) == 2
    shop.moved = 1.5
    relay.run_once()
    assert shop.bodies == [b"c", b"a", b"b"]


def test_refused_rows_are_sent_again_after_their_age(shop):
    shop.put(b"a")
    shop.server.refuses[b"a"] = DrainingError()
    waits = []
    for shop.moved in (0, 20, 300):
        shop.relay().run_once()
        waits.append(round(shop.rows[0].retry_at - shop.clock()))
    assert waits == [1, 20, 60]


def test_leaves_a_status_for_the_console(shop):
    shop.put(b"a", b"b")
    shop.server.refuses |= {b"a": DrainingError(), b"b": JobTooBigError()}
    shop.moved = 30
    shop.relay(name="shop").run_once()
    status = Status.decode(shop.server.others[TUBE, f"{KEY}shop"])
    assert (status.waiting, status.failed, round(status.lag)) == (1, 1, 30)


BAD_STATUS = Status(1, 2, float("nan"), 3, 4, -1.0).encode()


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"waiting": "x"}', BAD_STATUS, b"\xff", b"[" * 100_000])
def test_a_status_that_is_none(body):
    with pytest.raises(ValueError, match="not the status"):
        Status.decode(body)


def test_sends_nothing_if_it_cannot_delete_rows(shop):
    """Each put would be repeated, and become another job when the server forgets its token."""
    shop.put(b"a")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE beanstalk_outbox RENAME TO another")
        connection.exec_driver_sql("CREATE VIEW beanstalk_outbox AS SELECT * FROM another")
    with pytest.raises(sqlalchemy.exc.OperationalError, match="view"):
        shop.relay().run_once()
    assert shop.bodies == []


def test_needs_put_with(shop):
    shop.server.knows_put_with = False
    with pytest.raises(UnsupportedError):
        shop.relay().run()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"poll": 0}, "poll"), ({"hold": -1}, "hold"), ({"batch": 0}, "batch"), ({"name": "my shop"}, "key")],
)
def test_refuses_arguments_out_of_range(shop, options, named):
    with pytest.raises(ValueError, match=named):
        shop.relay(**options)


def test_goes_on_after_losses_in_a_thread(shop, caplog, monkeypatch):
    caplog.set_level("INFO")
    monkeypatch.setattr("beanstalk_client.passes.RETRY_AFTER", (0.001, 0.001))
    shop.put(b"a", b"b")
    shop.server.answers = 0
    with shop.relay(poll=0.001).in_thread():
        eventually(lambda: not shop.rows, "all rows are sent")
    assert shop.bodies == [b"a", b"b"]
    assert [record.event for record in caplog.records] == ["outbox-waits", "outbox-resumed"]
    assert not [each for each in threading.enumerate() if each.name == "outbox"]


def test_an_error_that_ends_the_thread_is_logged(shop, caplog):
    shop.server.knows_put_with = False
    with shop.relay().in_thread():
        eventually(lambda: caplog.records, "the error is logged")
    assert [record.event for record in caplog.records] == ["outbox-ended"]


class DyingError(Exception):
    """The relay is killed."""


class DyingDatabase(SqlalchemyDatabase):
    """A relay with it dies at a statement, or at the commit."""

    def __init__(self, engine, at):
        super().__init__(engine)
        self.left = at

    @contextlib.contextmanager
    def transaction(self):
        with super().transaction() as execute:

            def dying(statement, values):
                self.step()
                return execute(statement, values)

            yield dying
            self.step()
        self.step()

    def step(self):
        self.left -= 1
        if self.left < 0:
            raise DyingError


PUTS = st.lists(
    st.tuples(st.sampled_from(["mail", "letters"]), st.sampled_from(["", "k1", "k2"])), min_size=1, max_size=4
)
TRANSACTION = st.tuples(PUTS, st.booleans())
NEVER = 99
FAULT = st.tuples(st.integers(0, 8) | st.just(NEVER), st.none() | st.integers(0, 2), st.integers(0, 2))
STEPS = st.lists(
    st.tuples(
        st.lists(TRANSACTION, min_size=1, max_size=3), st.lists(FAULT, min_size=1, max_size=3), st.integers(1, 3)
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    shop = Shop(tmp_path_factory.mktemp("shop") / "shop.db")
    with shop.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = MEMORY")
    yield shop.engine
    shop.engine.dispose()


@settings(max_examples=examples(30))
@given(STEPS)
def test_jobs_are_the_committed_puts_in_the_order_of_their_keys(engine, rounds):
    server, outbox = FakeServer(), Outbox()
    committed = []
    number = 0
    for transactions, faults, batch in rounds:
        for puts, is_committed in transactions:
            made = []
            with contextlib.suppress(ZeroDivisionError), engine.begin() as connection:
                with outbox.using(connection):
                    for tube, key in puts:
                        number += 1
                        made.append((tube, key or None, b"%d" % number))
                        outbox.client(tube).put_with(made[-1][2], key=key)
                if not is_committed:
                    raise ZeroDivisionError
                committed += made
        for dies, answers, does in faults:
            server.answers, server.does = answers, does
            with contextlib.suppress(DyingError, ConnectionError):
                Relay(DyingDatabase(engine, dies), server.connect, batch=batch).run_once()
    server.answers = None
    relay = Relay(SqlalchemyDatabase(engine), server.connect)
    relay.run_once()
    assert sorted(server.puts, key=repr) == sorted(committed, key=repr)
    for name in {put[:2] for put in committed if put[1]}:
        of_key = [put for put in committed if put[:2] == name]
        assert [put for put in server.puts if put[:2] == name] == of_key
    assert relay.status().waiting == 0
