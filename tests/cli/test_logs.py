"""The log: every line has an event, which docs/observability.md lists; as JSON, it is an object with its fields."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import warnings

import logged
import pytest

from beanstalk_server import Config, Server
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.cli import logs
from beanstalk_server.cli.logs import JsonFormatter, TextFormatter
from beanstalk_server.events import event, event_of, log_of_shard
from beanstalk_server.io_processes import notes

CALLS = logged.calls()


def record(text, *args, name="beanstalk_server", level=logging.INFO, **extra):
    return logging.makeLogRecord(
        {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": text, "args": args} | extra
    )


def as_json(*args, **extra):
    one = logging.LogRecord("beanstalk_server", logging.INFO, "", 0, *args, None)
    vars(one).update(extra)
    line = JsonFormatter().format(one)
    assert "\n" not in line
    return json.loads(line)


# What the sources log


def test_every_line_has_a_name():
    assert [call.place for call in CALLS if not call.name] == []
    assert len(CALLS) > 90


def test_names_are_in_kebab_case():
    assert [call.name for call in CALLS if not logged.re.fullmatch(r"[a-z]+(-[a-z]+)*", call.name)] == []


def test_a_name_is_of_one_event():
    """Several places may log the same: at the same level, and about the same fields."""
    first = {}
    for call in CALLS:
        before = first.setdefault(call.name, call)
        assert call.level == before.level, f"{call.place} and {before.place}: {call.name} has two levels"
        common = set.intersection(*map(logged.shown_fields, call.texts | before.texts)) or call.fields == before.fields
        assert common, f"{call.place} and {before.place}: {call.name} is of two events"


def test_each_text_shows_fields_that_its_event_has():
    for call in CALLS:
        for text in call.texts:
            assert logged.shown_fields(text) <= call.fields, call.place
            text % dict.fromkeys(call.fields, 1)  # and no other mark for a value


def test_no_field_has_the_name_of_a_key_that_every_line_has():
    assert [call.place for call in CALLS if call.fields & {"time", "level", "event", "message", "exception"}] == []


def test_the_page_lists_the_events():
    assert logged.table() in logged.PAGE.read_text(), (
        "docs/observability.md is not what `python tests/logged.py` writes"
    )


# As JSON


def test_a_line_is_an_object_with_the_fields_of_its_event():
    line = as_json("recovered %(jobs)d jobs", (event("recovered", jobs=12, path="/jobs"),), created=1777897800.1239)
    assert line == {
        "time": "2026-05-04T12:30:00.123Z",
        "level": "info",
        "event": "recovered",
        "message": "recovered 12 jobs",
        "jobs": 12,
        "path": "/jobs",
    }


def test_the_text_is_as_it_was():
    one = logging.LogRecord("x", logging.INFO, "", 0, "recovered %(jobs)d jobs", (event("recovered", jobs=12),), None)
    assert TextFormatter().format(one).endswith(" INFO recovered 12 jobs")


@pytest.mark.parametrize("name", ["two\nlines", "\u2028", "\udc80", '"', "\x00", "100 %(jobs)d %"])
def test_a_line_stays_one_whatever_is_in_it(name):
    assert as_json("%(client)s connected", (event("connected", client=name),))["client"] == name


@pytest.mark.parametrize("name", ["two\nlines", "\u2028", "\x1b[2J", "\x9b1m", "\x00", "\u202e"])
def test_text_from_elsewhere_forges_no_line_and_reaches_no_terminal_as_an_escape(name):
    fields = (event("connected", client=f"é {name}"),)
    line = TextFormatter().format(logging.LogRecord("x", logging.INFO, "", 0, "%(client)s connected", fields, None))
    assert line.isprintable()
    assert line.endswith(f" INFO é {ascii(name)[1:-1]} connected")


def test_a_value_that_json_does_not_have_is_its_text():
    assert as_json("%(error)s", (event("engine-silent", error=OSError(5, "bad")),))["error"] == "[Errno 5] bad"


def test_an_exception_is_a_field():
    try:
        raise KeyError(7)
    except KeyError:
        line = as_json("it failed", (event("bug-in-timer"),), exc_info=sys.exc_info())
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback") and line["exception"].endswith("KeyError: 7")


def test_lines_of_others_have_a_name_too():
    assert as_json("%s failed", ("it",), name="asyncio")["event"] == "uncaught"
    assert as_json("%(jobs)d", ({"jobs": 1, "message": "no event"},), name="another") | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "another",
        "message": "1",
    }


def test_a_line_about_a_shard_names_it_in_the_text_and_in_a_field(caplog):
    log = logging.getLogger("beanstalk_server")
    assert log_of_shard(log, 0, 1) is log
    log_of_shard(log, 3, 8).warning("%(path)s: 100 %%", event("damaged", path="x"))
    assert caplog.messages == ["shard 3: x: 100 %"]
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (line["shard"], line["path"]) == (3, "x")


def carry(one):
    """A line of an I/O process, as its engine process writes it."""
    sent, written = [], []
    notes.NoteHandler(lambda note: sent.append(note) or True).emit(one)
    handler = logging.Handler()
    handler.emit = written.append
    log = logging.getLogger("beanstalk_server")
    log.addHandler(handler)
    try:
        notes.log_line(sent[0])
    finally:
        log.removeHandler(handler)
    (arrived,) = written
    return arrived


def test_a_line_of_an_io_process_arrives_with_its_event(caplog):
    del caplog  # which lets every level through
    caused = None
    try:
        raise KeyError(7)
    except KeyError:
        caused = sys.exc_info()
    one = logging.LogRecord("x.y", logging.ERROR, "", 0, "%(client)s: 7 %%", (event("bug", client="ü", n=7),), caused)
    arrived = carry(one)
    assert event_of(arrived) == {"event": "bug", "client": "ü", "n": 7}
    assert (arrived.name, arrived.levelno, arrived.getMessage()) == ("x.y", logging.ERROR, "ü: 7 %")
    line = json.loads(JsonFormatter().format(arrived))
    assert (line["level"], line["event"], line["message"]) == ("error", "bug", "ü: 7 %")
    assert line["exception"].endswith("KeyError: 7")
    assert TextFormatter().format(arrived).endswith("ü: 7 %\n" + line["exception"])


def test_of_a_line_with_endless_fields_the_name_arrives(caplog):
    del caplog
    one = logging.LogRecord("x", logging.ERROR, "", 0, "%(client)s", (event("bug", client="ü" * 100_000),), None)
    arrived = carry(one)
    assert event_of(arrived)["event"] == "bug"
    assert arrived.getMessage().startswith("üü")


@pytest.mark.parametrize("note", [b"L\x14x", b"L\x14x\0", b"L\x14x\0{}", b"L\x14x\0[]\0text", b"L\x14x\0{\0text"])
def test_a_note_that_is_no_line_is_refused(note):
    with pytest.raises(ValueError, match=r"invalid log line|^Expecting"):
        notes.log_line(note)


@pytest.mark.sockets
def test_no_token_and_no_body_is_in_a_line(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    token, body = "t0k3n-of-a-user", "b0dy-of-a-job"
    (tmp_path / "tokens").write_text(hash_of_token(token) + "\n")

    async def speak(*said):
        config = Config(port=0, token_file=str(tmp_path / "tokens"), verbosity=2, slow_ms=0.001)
        async with Server(config) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write("".join(said).encode())
            writer.write_eof()
            found = await reader.read()
            writer.close()
            return found

    put = f"put 0 0 60 {len(body)}\r\n{body}\r\npeek-ready\r\n"
    assert body.encode() in asyncio.run(speak(f"auth {token}\r\n", put, f"auth {token}\r\n", f"AUTH  {token}\r\n"))
    asyncio.run(speak(f"auth {token}x\r\n", put))
    asyncio.run(speak(put))
    lines = [JsonFormatter().format(one) for one in caplog.records]
    assert {"started", "connected", "command", "client-refused", "slow-turn"} <= {
        json.loads(one)["event"] for one in lines
    }
    secrets = [token, hash_of_token(token), body]
    assert [one for one in lines if any(secret in one for secret in secrets)] == []


# As a process writes it

RUN = [sys.executable, "-P", "-c", "import sys; from beanstalk_server.cli.server import main; sys.exit(main())"]


def lines_of(*options, code=None, **environment):
    """What a process writes to its standard error, and its exit status."""
    command = [sys.executable, "-c", code] if code else [*RUN, *options]
    path = {"PYTHONPATH": str(logged.ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | path | environment)
    return run.stderr.splitlines(), run.returncode


@pytest.mark.sockets
def test_why_a_server_does_not_start_is_told_in_the_format():
    lines, status = lines_of("-p", "0", "-u", "nosuchuser", "--log-format", "json")
    (line,) = map(json.loads, lines)
    assert (line["level"], line["event"], line["status"], status) == ("critical", "start-failed", 33, 33)
    assert line["message"] == line["mistake"] == "-u/--user nosuchuser: no such user"


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--log-format", "json", "-p", "x y"), {}),
        (("--log-format=json", "-p", "x y"), {}),
        ((), {"BEANSTALK_SERVER_LOG_FORMAT": "json", "BEANSTALK_SERVER_TICK": "-1"}),
    ],
)
def test_bad_options_are_told_in_the_format(options, environment):
    lines, status = lines_of("--nothing" if options else "-p0", *options, **environment)
    (line,) = map(json.loads, lines)
    assert (line["event"], line["status"], status) == ("start-failed", 5, 5)


@pytest.mark.sockets
def test_bad_options_are_told_as_text_where_nobody_asks_for_json():
    assert lines_of("--log-format", "xml") == (
        ["beanstalk-server: --log-format: bad value 'xml': must be text or json"],
        5,
    )


UNCAUGHT = """
import asyncio, threading, uvloop, warnings
from beanstalk_server.cli.logs import start_log
start_log("json", "{level}")

async def main():
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)
    thread = threading.Thread(target=lambda: {{}}[7])
    thread.start()
    thread.join()
    warnings.warn("old\\nways", UserWarning)

class Odd:
    def __del__(self):
        raise OSError(5, "odd")

Odd()
uvloop.run(main())
raise LookupError("the end")
"""


@pytest.mark.sockets
def test_what_nobody_handles_is_one_line_of_json_each():
    lines, status = lines_of(code=UNCAUGHT.format(level="info"))
    found = [json.loads(line) for line in lines]
    assert [(each["event"], each["exception"].splitlines()[-1]) for each in found if "exception" in each] == [
        ("uncaught", "OSError: [Errno 5] odd"),
        ("uncaught", "ZeroDivisionError: division by zero"),
        ("uncaught", "KeyError: 7"),
        ("uncaught", "LookupError: the end"),
    ]
    (warning,) = [each for each in found if "exception" not in each]
    assert (warning["level"], warning["event"]) == ("warning", "python-warning")
    assert "UserWarning: old\nways" in warning["message"]
    assert status == 1


@pytest.mark.sockets
def test_less_grave_lines_are_left_out():
    lines, _ = lines_of(code=UNCAUGHT.format(level="critical"))
    assert [json.loads(line)["level"] for line in lines] == ["critical"] * 3


def test_text_leaves_the_process_as_it_is(monkeypatch):
    before = sys.excepthook, sys.unraisablehook, warnings.showwarning
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    logs.start_log("text", "info")
    assert (sys.excepthook, sys.unraisablehook, warnings.showwarning) == before
