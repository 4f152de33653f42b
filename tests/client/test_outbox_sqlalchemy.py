"""The outbox of a program with SQLAlchemy: sessions of all kinds, and relays that share rows."""

import asyncio
import contextlib
import time

import pytest
import sqlalchemy
from beanstalk_client.outbox.relay import Relay
from beanstalk_client.outbox.sqlalchemy import Outbox, SqlalchemyDatabase, outbox_table
from beanstalk_client.tasks import Tasks
from outbox_servers import FakeServer
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from harness.postgres import single_postgres

METADATA = sqlalchemy.MetaData()
ROWS = outbox_table(METADATA)
BODY = bytes(range(256))


@pytest.fixture(scope="module")
def postgresql():
    with single_postgres() as server:
        yield f"//postgres@127.0.0.1:{server.port}/postgres"


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request, tmp_path):
    """The URLs of a database with the table, for a blocking engine and for an asynchronous one."""
    if request.param == "sqlite":
        urls = f"sqlite:///{tmp_path}/shop.db", f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    else:
        where = request.getfixturevalue("postgresql")
        urls = f"postgresql+psycopg:{where}", f"postgresql+asyncpg:{where}"
    engine = sqlalchemy.create_engine(urls[0])
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    engine.dispose()
    return urls


@pytest.fixture
def engine(urls):
    engine = sqlalchemy.create_engine(urls[0])
    yield engine
    engine.dispose()


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def mail(outbox):
    tasks = Tasks(outbox=outbox)
    tasks.only_in_memory = True  # no test connects

    @tasks.task(tube="mail")
    def mail(to): ...

    return mail


def sent(engine):
    server = FakeServer()
    Relay(SqlalchemyDatabase(engine), server.connect).run_once()
    return [body for _, _, body in server.puts]


@pytest.mark.parametrize("make", [Session, lambda engine: scoped_session(sessionmaker(engine))], ids=["one", "scoped"])
def test_a_session(engine, outbox, mail, make):
    session = make(engine)
    with outbox.using(session):
        mail.put("a")
        with contextlib.suppress(ZeroDivisionError), session.begin_nested():
            mail.put("never")
            raise ZeroDivisionError
        assert outbox.client("mail").put(BODY) == 0
    if engine.dialect.name != "sqlite":  # in which a transaction that has written locks the database
        assert sent(engine) == []
    session.commit()
    with outbox.using(session):
        mail.put("never")
    session.rollback()
    session.close()
    assert sent(engine) == [mail.body("a"), BODY]


def test_a_connection(engine, outbox, mail):
    with engine.begin() as connection, outbox.using(connection):
        mail.put("a")
    assert sent(engine) == [mail.body("a")]


def test_an_asynchronous_session(urls, engine, outbox, mail):
    async def main():
        asynchronous = create_async_engine(urls[1])
        async with AsyncSession(asynchronous) as session:
            with outbox.using(session):
                assert await mail.aput("a") == 0
                assert await mail.acancel("order-17") is True
                await outbox.client("mail").put(BODY)
                with pytest.raises(RuntimeError, match="await aput"):
                    mail.put("never")
            await session.commit()
            with outbox.using(session):
                await mail.aput("never")
            await session.rollback()
        async with asynchronous.begin() as connection:
            with outbox.using(connection):
                await mail.aput("b")
        await asynchronous.dispose()

    asyncio.run(main())
    assert sent(engine) == [mail.body("a"), BODY, mail.body("b")]


@pytest.mark.parametrize("urls", ["postgresql"], indirect=True)
def test_transactions_at_the_same_time_each_have_their_jobs(urls, engine, outbox, mail):
    async def place(session, name, has_begun, may_end):
        with outbox.using(session):
            has_begun.set()
            await may_end.wait()
            await mail.aput(name)

    async def main():
        asynchronous = create_async_engine(urls[1])
        events = [asyncio.Event(), asyncio.Event()]
        async with AsyncSession(asynchronous) as one, AsyncSession(asynchronous) as other:
            first = asyncio.create_task(place(one, "a", *events))
            second = asyncio.create_task(place(other, "b", *reversed(events)))
            await first
            await one.commit()
            await second
            await other.rollback()
        await asynchronous.dispose()

    asyncio.run(main())
    assert sent(engine) == [mail.body("a")]


def test_a_task_of_asyncio_that_outlives_the_block_is_outside(engine, outbox):
    async def main():
        async def later():
            await asyncio.sleep(0)
            return outbox.client("mail")

        with engine.connect() as connection, outbox.using(connection):
            running = asyncio.create_task(later())
            assert outbox.client("mail") is not None
        return await running

    assert asyncio.run(main()) is None
    assert outbox.client("mail") is None


def test_another_database_is_refused():
    class Dialect:
        name = "oracle"

    class Connection:
        dialect = Dialect

    with pytest.raises(ValueError, match="does not support oracle"), Outbox().using(Connection()):
        raise AssertionError


def test_a_commit_wakes_a_relay_on_postgresql(urls, engine, outbox, mail):
    database = SqlalchemyDatabase(engine)
    if engine.dialect.name == "sqlite":
        assert not database.wait(60)
        return
    assert database.wait(0)
    with engine.begin() as connection, outbox.using(connection):
        mail.put("a")
    began = time.monotonic()
    assert database.wait(60)
    assert time.monotonic() - began < 30
    database.close()
    assert database.wait(0)
    database.close()


def test_notifications_can_be_left_out(postgresql):
    engine = sqlalchemy.create_engine(f"postgresql+psycopg:{postgresql}")
    METADATA.create_all(engine)
    database, outbox = SqlalchemyDatabase(engine), Outbox(notify=False)
    assert database.wait(0)
    with engine.begin() as connection, outbox.using(connection):
        outbox.client("mail").put(b"a")
    assert list(database._listening.connection.driver_connection.notifies(timeout=0)) == []
    database.close()
    engine.dispose()


def test_relays_share_rows_and_keep_the_order_of_a_key(postgresql):
    """While one relay has rows locked, another one sends those behind them, but none of the same key."""
    engine = sqlalchemy.create_engine(f"postgresql+psycopg:{postgresql}")
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    outbox, server, other = Outbox(), FakeServer(), FakeServer()
    with engine.begin() as connection, outbox.using(connection):
        for body, key in ((b"1", "k"), (b"2", ""), (b"3", "k"), (b"4", "")):
            outbox.client("mail").put_with(body, key=key)
    second = Relay(SqlalchemyDatabase(engine), other.connect, batch=1)

    class Between(FakeServer):
        def do(self, *arguments):
            second.run_once()
            return super().do(*arguments)

    server = Between()
    Relay(SqlalchemyDatabase(engine), server.connect, batch=2).make_pass(server.connect())
    assert [body for _, _, body in server.puts] == [b"1", b"2"]
    assert [body for _, _, body in other.puts] == [b"4"]
    second.run_once()
    assert [body for _, _, body in other.puts] == [b"4", b"3"]
    engine.dispose()
