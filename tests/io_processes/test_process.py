"""An I/O process and its engine process, in one process: what each makes of what comes through the pair."""

import asyncio
import contextlib
import logging
import os
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tls_peers import Files
from unfailing import Plug, failing_in_nothing

from beanstalk_server import ListenerConfig, UserConfig
from beanstalk_server.io_processes import notes
from beanstalk_server.io_processes import settings as io_settings
from beanstalk_server.io_processes.carried import Carrier, decode_opening, encode_opening
from beanstalk_server.io_processes.process import IoProcess
from beanstalk_server.io_processes.processes import IoProcesses, environment
from beanstalk_server.io_processes.processes import IoProcessHandle as Started
from beanstalk_server.io_processes.settings import IoSettings, KeptFiles, ListenSocket
from beanstalk_server.link.link import (
    CLOSE,
    CREDIT,
    DATA,
    END,
    GOODBYE,
    HANGUP,
    HEADER,
    NOTE,
    OPEN,
    OPEN_PART,
    PING,
    REST,
    STOP,
    USER,
    WINDOW,
    Channel,
    Link,
    LinkError,
)
from beanstalk_server.server.front.connection_counts import ConnectionCounts, prepare_counts
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import LEAVE_TO_OTHERS, Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.start_error import StartError
from harness.waiting import eventually_async

HERE = ListenerConfig(address="127.0.0.1:0")


class Client(Channel):
    """A client at the engine's end, which notes what comes."""

    def __init__(self, payload):
        super().__init__()
        self.opening = decode_opening(payload)
        self.events = []
        self.data = b""
        self.takes = True

    def on_data(self, data):
        self.data += data
        if self.takes:
            self.consumed(len(data))

    def on_room(self): ...

    def on_hangup(self):
        self.events.append("hangup")

    def on_end(self):
        self.events.append("end")
        self.close_channel(at_once=False)

    def on_close(self, *, at_once):
        self.events.append("aborted" if at_once else "closed")

    def on_lost(self, *, is_clean):
        self.events.append("lost")


class Engine:
    """The engine process of an I/O process that runs in this one."""

    def __init__(self):
        self.clients = []
        self.notes = []
        self.sock, self.their_sock = socket.socketpair()
        self.control, self.their_control = socket.socketpair()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = self.listening.getsockname()
        self.process = IoProcess(self.their_sock, self.their_control)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.tell()
        self.work = loop.create_task(self.process.run())
        self.end = LinkEnd(loop, lambda *_: None, name="I/O process")
        self.link = Link(
            dials=False, on_output=self.end.output, accept=self.accept, on_note=self.notes.append, handshake_grace=30
        )
        self.end.begin(self.link)
        await loop.create_unix_connection(lambda: self.end, sock=self.sock)
        await eventually_async(lambda: notes.READY in self.notes, "the I/O process is ready")
        return self

    async def __aexit__(self, *_):
        self.end.close("the test is over")
        await self.work
        for each in (self.listening, self.control, self.their_control):
            each.close()

    def tell(self, *sockets, **more):
        sockets = sockets or [ListenSocket(number=1, place="here", config=HERE, descriptor=self.listening.fileno())]
        IoSettings(sockets=list(sockets), **more).send(self.control)

    def accept(self, payload):
        self.clients.append(Client(payload))
        return self.clients[-1]

    async def connect(self):
        """A client: what it reads and writes with, and the engine's end of its channel."""
        count = len(self.clients)
        reader, writer = await asyncio.open_connection(*self.address)
        await eventually_async(lambda: len(self.clients) > count, "the engine process knows the client")
        return reader, writer, self.clients[-1]


@pytest.fixture
@contextlib.asynccontextmanager
async def engine(loop_factory):
    async with Engine() as engine:
        yield engine


async def closed(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_client_is_announced_with_its_listener_and_its_address(engine):
    _, writer, client = await engine.connect()
    host, port = writer.get_extra_info("sockname")
    assert client.opening == (1, "", f"{host}:{port}")
    await closed(writer)
    await eventually_async(lambda: client.events == ["end"], "it has hung up")
    await eventually_async(lambda: engine.process.listeners.taken == 0, "it is gone")


async def test_no_more_than_a_window_is_sent_for_a_client_that_gets_no_credit(engine):
    _, writer, client = await engine.connect()
    client.takes = False
    body = bytes(range(256)) * 320
    writer.write(body)
    await eventually_async(lambda: len(client.data) == WINDOW, "a window has come")
    carried = next(iter(engine.process.carrier.open))
    await eventually_async(lambda: not carried._intake.reading, "it is read from no more")
    writer.write_eof()
    await eventually_async(lambda: client.events == ["hangup"], "its hang-up is noticed all the same")
    client.takes = True
    client.consumed(WINDOW)
    await eventually_async(lambda: client.events == ["hangup", "end"], "all has come")
    assert client.data == body
    await closed(writer)


async def test_a_client_that_does_not_read_gets_no_more_than_it_has_credit_for(engine):
    reader, writer, client = await engine.connect()
    writer.transport.pause_reading()
    sent = 0
    while sent < 64 << 20 and client.room():
        piece = bytes(client.room())
        client.send(piece)
        sent += len(piece)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_room(client), 0.5)
    assert sent < 64 << 20
    writer.transport.resume_reading()
    assert await reader.readexactly(sent) == bytes(sent)
    await eventually_async(lambda: client.room() > WINDOW // 2, "there is room again")
    await closed(writer)


async def _room(client):
    while not client.room():
        await asyncio.sleep(0.01)


async def test_a_client_that_is_let_go_gets_what_it_was_sent(engine):
    for at_once in (False, True):
        reader, writer, client = await engine.connect()
        client.send(b"goodbye")
        client.close_channel(at_once=at_once)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.readexactly(7) == b"goodbye"
            assert await reader.read() == b""
        await closed(writer)
    await eventually_async(lambda: not engine.process.carrier.open, "no client is there")
    assert engine.process.listeners.taken == 0


async def test_it_ends_with_the_link_and_disconnects_its_clients(engine):
    reader, writer, client = await engine.connect()
    client.send(b"the last words")
    engine.end.say_goodbye("the server stops")
    assert await reader.readexactly(14) == b"the last words"
    await engine.work
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await closed(writer)


def test_it_ends_if_there_will_never_be_settings(loop_factory):
    ours, theirs = socket.socketpair()
    control, their_control = socket.socketpair()
    with ours, theirs, their_control, asyncio.Runner(loop_factory=loop_factory) as runner:
        control.close()
        process = IoProcess(theirs, their_control)
        runner.run(process.run())
        assert not process.send_note(b"x"), "it has begun nothing"


async def test_listeners_come_and_go(engine):
    with socket.create_server(("127.0.0.1", 0)) as other:
        here = ListenSocket(number=1, place="here", config=HERE, descriptor=engine.listening.fileno())
        there = ListenSocket(number=2, place="there", config=HERE, descriptor=other.fileno())
        engine.tell(here, there)
        await eventually_async(lambda: len(engine.notes) == 2, "the settings have been taken")
        _, first, _ = await engine.connect()
        engine.address = other.getsockname()
        _, second, client = await engine.connect()
        assert client.opening[0] == 2
        engine.tell(there)
        await eventually_async(lambda: len(engine.notes) == 3, "the settings have been taken")
        assert [listener_policy.number for listener_policy in engine.process.listeners.listener_policies] == [2]
        await closed(first)
        await closed(second)


async def test_settings_that_it_cannot_take_end_it(engine, caplog):
    secure = ListenerConfig(address="127.0.0.1:0", tls_cert="/nowhere")
    engine.tell(ListenSocket(number=2, place="there", config=secure, descriptor=engine.listening.fileno()))
    await engine.work
    assert "cannot apply its settings" in caplog.text


async def test_no_more_settings_are_no_reason_to_end(engine):
    engine.control.close()
    for _ in range(2):
        _, writer, _ = await engine.connect()
        await closed(writer)
    assert not engine.work.done()


async def test_a_client_that_finds_no_link_is_disconnected(engine):
    engine.process.carrier.link = None
    reader, writer = await asyncio.open_connection(*engine.address)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await closed(writer)
    assert not engine.process.send_note(b"x")


# What is sent


def test_settings_arrive_as_they_were_sent(tmp_path):
    files = Files(tmp_path)
    kept = KeptFiles()
    listener = files.listener(mutual=True, auth="certificate", proxy_protocol=True, trusted=("10.0.0.0/8",))
    for path in (listener.tls_cert, listener.tls_key, listener.tls_client_ca):
        with open(kept.place(path), "rb") as found, open(path, "rb") as original:
            assert found.read() == original.read()
    user = UserConfig(name="ann", token_sha256=("0" * 64,), uid=(7,), produce="*")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as sock:
        sockets = [
            ListenSocket(number=n, place=f"place {n}", config=listener, descriptor=sock.fileno()) for n in range(500)
        ]
        sent = IoSettings(sockets=sockets, users=[user], files=dict(kept.descriptors))
        sent.send(ours)
        found = IoSettings.receive(theirs)
        assert [
            (listen_socket.number, listen_socket.place, listen_socket.config) for listen_socket in found.sockets
        ] == [(listen_socket.number, listen_socket.place, listen_socket.config) for listen_socket in sockets]
        assert found.users == [UserConfig(name="ann", token_sha256=("0" * 64,), uid=(7,))]
        for path in kept.descriptors:
            with open(found.place(path), "rb") as copy, open(path, "rb") as original:
                assert copy.read() == original.read()
        assert all(
            os.fstat(listen_socket.descriptor).st_ino == os.fstat(sock.fileno()).st_ino
            for listen_socket in found.sockets
        )
        found.close()
    kept.close()


def test_a_file_that_cannot_be_kept_is_looked_for_where_it_is(tmp_path):
    kept = KeptFiles()
    os.mkfifo(tmp_path / "pipe")
    for path in ("/nowhere", str(tmp_path / "pipe"), "\0"):
        assert kept.place(path) == path
    assert not kept.descriptors


def test_a_kept_file_cannot_be_changed(tmp_path):
    kept = KeptFiles()
    (tmp_path / "file").write_text("x")
    place = kept.place(str(tmp_path / "file"))
    with pytest.raises(PermissionError), open(place, "r+b", buffering=0) as file:
        file.write(b"y")
    kept.close()


def test_a_system_without_files_in_memory_speaks_no_tls_in_other_processes(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(StartError, match="needs Linux"):
        KeptFiles().place("/nowhere")
    descriptor = io_settings.file_of(b"settings")
    assert os.pread(descriptor, 100, 0) == b"settings"
    os.close(descriptor)


def test_a_line_of_the_log_arrives_with_its_level_and_its_logger(caplog):
    sent = []
    handler = notes.NoteHandler(lambda note: sent.append(note) or True)
    handler.setFormatter(logging.Formatter("%(message)s"))
    record = logging.LogRecord("beanstalk_server.x", logging.WARNING, "", 0, "%s is refused: ü", ("a client",), None)
    handler.emit(record)
    notes.log_line(sent[0])
    assert caplog.record_tuples == [("beanstalk_server.x", logging.WARNING, "a client is refused: ü")]
    record.msg, record.args = "x" * (1 << 20), ()
    handler.emit(record)
    assert len(sent[1]) == 1 << 16


def test_a_line_that_nobody_would_get_is_written_to_standard_error(capsys):
    handler = notes.NoteHandler(lambda _: False)
    handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "nobody hears me", (), None))
    assert capsys.readouterr().err == "nobody hears me\n"


def test_a_process_with_more_clients_than_another_is_ahead():
    descriptor = io_settings.make_file()
    prepare_counts(descriptor, 3)
    first, second, third = (ConnectionCounts(descriptor, place) for place in range(3))
    os.close(descriptor)
    assert not first.is_ahead()
    first.note(1)
    second.note(1)
    assert first.is_ahead() and second.is_ahead() and not third.is_ahead()
    third.note(5)
    assert not first.is_ahead() and third.is_ahead()


async def test_one_that_is_ahead_leaves_clients_to_the_others_for_a_moment(engine, monkeypatch):
    class Ahead:
        def note(self, count): ...

        def is_ahead(self):
            return True

    def noted(listeners, listener, seconds, **how):
        pauses.append(seconds)
        pause(listeners, listener, seconds, **how)

    pauses, pause = [], Listeners._pause
    monkeypatch.setattr(Listeners, "_pause", noted)
    engine.process.listeners._process_counts = Ahead()
    for _ in range(3):
        _, writer, _ = await engine.connect()
        await closed(writer)
    assert len(pauses) >= 3 and set(pauses) == {LEAVE_TO_OTHERS}


def test_an_io_process_knows_none_of_the_servers_settings(monkeypatch):
    monkeypatch.setenv("BEANSTALK_SERVER_CLUSTER", "redis://user:password@host")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert not {"BEANSTALK_SERVER_CLUSTER", "NOTIFY_SOCKET"} & set(environment())


# Whatever comes through the pair


class Served:
    """What serves a client: it answers each piece, and notes that it is gone."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

    def eof_received(self):
        self.transport.close()

    def on_hangup(self): ...
    def pause_writing(self): ...
    def resume_writing(self): ...

    def connection_lost(self, error):
        self.transport = None


payloads = st.one_of(
    st.binary(max_size=40),
    st.builds(encode_opening, st.integers(0, 3), st.sampled_from(["", "ann"]), st.just("a client")),
    st.sampled_from([b"\0", b"\1", b"R", b"L\x20beanstalk_server\0text", b"\0\0\1\0"]),
)
kinds = st.sampled_from([DATA, CREDIT, HANGUP, END, USER, CLOSE, OPEN, OPEN_PART, NOTE, PING, GOODBYE, 0, 99])


@st.composite
def frames(draw):
    found = draw(st.lists(st.tuples(kinds, st.integers(0, 3), payloads), max_size=20))
    data = b"".join(HEADER.pack(kind, number, len(payload)) + payload for kind, number, payload in found)
    return data + draw(st.binary(max_size=20))


@given(frames(), st.lists(st.integers(0, 300), max_size=6))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_an_io_process_sends_its_engine_process_fails_in_nothing(data, cuts):
    async def main():
        loop = asyncio.get_running_loop()
        failures = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        served = []

        def make_client(*_):
            served.append(Served())
            return served[-1]

        owner = IoProcesses(1, Listeners(), lambda: make_client)
        listener_policy = ListenerPolicy("here")
        listener_policy.number = 1
        owner.listener_policies = {1: listener_policy}
        started = Started(owner, 1)
        ended = []
        end = LinkEnd(loop, lambda _, why: ended.append(why), complains=True, name="I/O process 1")
        link = Link(
            dials=False, on_output=end.output, accept=started._accept, on_note=started._on_note, handshake_grace=30
        )
        started._end = end
        end.begin(link)
        end.connection_made(Plug())
        for piece in [data[start:stop] for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)]:
            end.data_received(piece)
            await asyncio.sleep(0)
        end.close("the test is over")
        end.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ended) == 1
        assert not failures
        assert not any(each.transport for each in served if hasattr(each, "transport"))

    with failing_in_nothing():
        asyncio.run(main())


class Browser(Plug):
    """A client's transport at an I/O process."""

    def __init__(self, loop, carried):
        self.loop = loop
        self.carried = carried
        self.closing = False
        carried.connection_made(self)

    def write(self, data):
        assert data
        if len(data) % 5 == 4:  # it is full
            self.carried.pause_writing()
            self.loop.call_soon(self._go_on)

    def _go_on(self):
        if not self.closing:
            self.carried.resume_writing()

    def close(self):
        if not self.closing:
            self.closing = True
            self.loop.call_soon(self.carried.connection_lost, None)

    abort = close

    def is_closing(self):
        return self.closing

    def get_extra_info(self, _):
        return self

    def fileno(self):
        return -1


replies = st.one_of(
    st.binary(max_size=300),
    st.integers(1, WINDOW + 10).map(lambda size: b"x" * size),
    st.sampled_from([b"\0", b"\1", b"\0why", b"\1two\nlines", b"\0\0\1\0", b"\0\1\0\0"]),
)
engine_kinds = st.sampled_from([DATA, DATA, CREDIT, CLOSE, NOTE, PING, GOODBYE, REST, STOP, OPEN, 0, 99])
client_steps = st.tuples(st.integers(0, 2), st.sampled_from(["send", "much", "end", "abort"]))


@given(
    st.lists(
        st.tuples(engine_kinds, st.integers(0, 4), replies) | client_steps | st.binary(min_size=1, max_size=9),
        max_size=30,
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_an_engine_process_sends_its_io_process_fails_in_nothing(steps):
    async def main():
        loop = asyncio.get_running_loop()
        failures = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        ended = []
        end = LinkEnd(loop, lambda _, why: ended.append(why), name="the engine process")
        link = Link(dials=True, on_output=end.output, trusts=True)
        end.begin(link)
        end.connection_made(Plug())
        carrier = Carrier(loop, Listeners(), HangupWatch())
        carrier.link = link
        listener_policy = ListenerPolicy("here")
        listener_policy.number = 1
        clients = [Browser(loop, carrier.make_client(listener_policy, None, f"client {number}")) for number in range(3)]
        for step in steps:
            match step:
                case bytes():
                    end.data_received(step)
                case number, action:
                    client = clients[number]
                    if client.closing:
                        continue
                    if action in ("send", "much"):
                        client.carried.data_received(b"stats\r\n" * (20_000 if action == "much" else 1))
                    else:
                        client.carried.eof_received() if action == "end" else client.abort()
                case kind, number, payload:
                    end.data_received(HEADER.pack(kind, number, len(payload)) + payload)
            await asyncio.sleep(0)
        end.close("the test is over")
        end.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(ended) == 1
        assert not failures
        assert not carrier.open
        assert all(client.closing for client in clients)

    with failing_in_nothing():
        asyncio.run(main())


def test_one_that_is_ready_for_settings_that_it_was_not_given_is_no_io_process():
    """Else a reload would wait for ever: as many are not in effect as were sent, and one fewer."""
    process = IoProcesses(1, Listeners(), lambda: None).all[0]
    with pytest.raises(LinkError, match="no settings were sent"):
        process._on_note(notes.READY)


def test_lines_for_the_log_make_no_loggers(caplog):
    before = len(logging.root.manager.loggerDict)
    record = logging.makeLogRecord({"name": "of-a-stranger", "levelno": logging.WARNING, "msg": "hello"})
    notes.log_line(notes.encode_line(record))
    assert caplog.messages == ["hello"]
    assert len(logging.root.manager.loggerDict) == before


@pytest.mark.parametrize("fields", [b"[" * 60_000, b'{"exception": 5}'], ids=["deep", "a number"])
def test_a_line_for_the_log_that_no_io_process_writes_ends_the_link(fields, caplog):
    process = IoProcesses(1, Listeners(), lambda: None).all[0]
    with pytest.raises(LinkError):
        process._on_note(notes.LINE + b"\x1ex\0" + fields + b"\0text")
    assert not caplog.messages


def test_a_client_has_a_name_that_can_be_shown():
    """It stands in the log, and in the YAML of list-clients."""
    with pytest.raises(ValueError, match="not printable"):
        decode_opening(encode_opening(1, "ann", 'a"}\n- {name: "b'))
