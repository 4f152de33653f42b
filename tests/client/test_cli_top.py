"""`beanstalk top` in a terminal, beside this server and beanstalkd: screens, keys, signals, the terminal given back."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import termios
import threading

import pytest
from on_terminal import BEANSTALK, OnTerminal

from beanstalk_server import Config, ListenerConfig, TubeConfig, UserConfig
from harness import servers
from harness.in_thread import ServerThread
from harness.waiting import eventually

INTERVAL = "0.2"


@pytest.fixture
def cleanup():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def on_terminal(cleanup):
    """Runs commands on terminals."""

    def on_terminal(*arguments, **options):
        terminal = OnTerminal(*arguments, **options)
        cleanup.callback(terminal.close)
        return terminal

    return on_terminal


@pytest.fixture
def top(on_terminal):
    def top(address, *arguments, **options):
        return on_terminal("top", "--server", named(address), "--interval", INTERVAL, *arguments, **options)

    return top


def named(address):
    return f"{address[0]}:{address[1]}"


def say(address, *commands):
    """Give commands, each of which is answered by one line; return the replies."""
    with socket.create_connection(address) as sock, sock.makefile("rwb") as file:
        replies = []
        for command in commands:
            file.write(command.encode() + b"\r\n")
            file.flush()
            replies.append(file.readline().decode().rstrip())
        return replies


def fill(address):
    """Three tubes: with ready jobs, with buried ones, and with a delayed one."""
    commands = ["use mail", *["put 5 0 60 5\r\nhello"] * 3, "use bill", *["put 5 0 60 3\r\npay"] * 2]
    commands += ["use later", "put 5 1000 60 1\r\nx"]
    say(address, *commands)
    with socket.create_connection(address) as sock, sock.makefile("rwb") as file:
        file.write(b"watch bill\r\nignore default\r\nreserve\r\n")
        file.flush()
        line = [file.readline() for _ in range(3)][2].split()
        file.read(int(line[2]) + 2)
        file.write(b"bury %b 5\r\n" % line[1])
        file.flush()
        assert file.readline() == b"BURIED\r\n"


def test_an_evening_with_top(run, top):
    """The tubes, another order, a prefix, the jobs of a tube, the help, quit."""
    address = run().address
    fill(address)
    terminal = top(address, size=(100, 20))
    assert terminal.shows("mail  ").split()[:5] == ["mail", "3", "0", "0", "0"]
    assert terminal.shows("beanstalk top  ").split()[:3] == ["beanstalk", "top", named(address)]
    terminal.shows("tubes 1 to 4 of 4 by ready")
    aged = re.compile(r"^mail +3 .* \d+s\b", re.MULTILINE)
    eventually(lambda: aged.search(terminal.text), "the age of the job that goes next")
    names = [line.split()[0] for line in terminal.lines[6:10]]
    assert names == ["mail", "bill", "default", "later"]
    assert terminal.attributes != terminal.attributes_before
    assert terminal.screen.cursor.hidden

    terminal.type("b")
    terminal.shows("by buried")
    assert terminal.lines[6].split()[:5] == ["bill", "1", "0", "0", "1"]
    terminal.type("t\x1b")
    terminal.type("[B")  # the arrow is divided
    terminal.type("/ma")
    terminal.shows("tubes 1 to 1 of 1 by tube, beginning with ma")
    terminal.type("\r\r")
    terminal.shows("the first jobs of mail in each state")
    assert terminal.shows(" hello").split()[1:3] == ["ready", "5"]
    assert terminal.text.count(" ready  ") >= 3
    terminal.type("\x1b")
    terminal.shows("q quit")
    terminal.type("?")
    terminal.shows("press any key to go back")
    terminal.type("xq")
    assert terminal.ends() == 0
    assert terminal.is_as_before
    assert b"\x1b[2J" not in terminal.raw  # a cleared screen would flicker
    assert terminal.raw.endswith(b"\x1b[?1049l")


def test_rates_are_shown(run, top):
    address = run().address
    terminal = top(address, size=(100, 12))
    terminal.shows("0.0/s in")
    rated = re.compile(r"^mail +\d+ .* [1-9]\d*\.\d +0\.0 +\+", re.MULTILINE)

    def put():
        say(address, "use mail", "put 0 0 1 1\r\nx")
        return rated.search(terminal.text)

    eventually(put, "a rate is shown")
    assert re.search(r"rates [1-9]\d*(\.\d)?/s in", terminal.text)


def test_a_terminal_may_change_its_size(run, top):
    address = run().address
    fill(address)
    terminal = top(address, size=(100, 20))
    terminal.shows("PAUSE")
    terminal.resize(40, 9)
    heading = ["TUBE", "READY", "RESVD", "DELAY", "BURY"]
    eventually(lambda: terminal.lines[5].split() == heading, "the columns that there is room for")
    eventually(lambda: terminal.lines[8].startswith("q quit"), "the foot")
    eventually(lambda: [line.split()[:1] for line in terminal.lines[6:8]] == [["mail"], ["bill"]], "the tubes")
    terminal.resize(140, 30)
    terminal.shows("READY OVER TIME")
    terminal.shows("later")
    terminal.resize(1, 1)
    terminal.resize(80, 24)
    terminal.shows("tubes 1 to 4 of 4")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (b"\x03", 130),
        (b"\x1c", 131),
    ],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C", "Ctrl-backslash"],
)
def test_a_signal_ends_it_and_the_terminal_is_given_back(run, top, end, status):
    terminal = top(run().address)
    terminal.shows("default")
    if isinstance(end, bytes):
        terminal.type(end)
    else:
        terminal.process.send_signal(end)
    assert terminal.ends() == status
    assert terminal.is_as_before


def test_an_error_of_its_own_gives_the_terminal_back(run, on_terminal):
    program = "from beanstalk_client.cli import top; top.Sampler.history = lambda *_, **__: 1 / 0; " + BEANSTALK
    terminal = on_terminal("top", "--server", named(run().address), program=program)
    assert terminal.ends() == 1
    assert terminal.is_as_before
    assert "ZeroDivisionError" in terminal.text


def test_a_terminal_that_has_gone_ends_it(run, top):
    terminal = top(run().address)
    terminal.shows("default")
    terminal.process.send_signal(signal.SIGSTOP)
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGCONT)
    assert terminal.process.wait(60) == 129


def test_ctrl_z_gives_the_terminal_back_until_fg(run, on_terminal):
    address = run().address
    program = "os.execv('/bin/sh', ['sh', '-i'])"
    command = (
        f"{sys.executable} -P -c '{BEANSTALK.replace('from', 'import sys; from', 1)}' top --server {named(address)}"
    )
    terminal = on_terminal(program=program, environment={"PS1": "ready> ", "ENV": ""}, size=(120, 20))
    terminal.shows("ready>")
    usual = terminal.attributes
    terminal.type(f"stty -g; {command} --interval {INTERVAL}\r")
    terminal.shows("TUBE")
    assert terminal.attributes != usual
    for _ in range(2):
        terminal.type("\x1a")
        eventually(lambda: terminal.text.count("ready>") and "topped" in terminal.text, "the shell has it")
        assert terminal.attributes == usual
        assert not terminal.screen.cursor.hidden
        terminal.type("clear; echo $((6*7))-$((6*8))\r")
        terminal.shows("42-48")
        terminal.type("fg\r")
        terminal.shows("TUBE")
        assert terminal.attributes != usual
        terminal.hides("42-48")
    terminal.type("q")
    eventually(lambda: terminal.attributes == usual, "the shell has it again")
    terminal.type("exit\r")
    terminal.ends()


def test_stopped_by_force_it_takes_the_terminal_over_again(run, top):
    terminal = top(run().address)
    terminal.shows("default")
    ours = terminal.attributes
    terminal.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    termios.tcsetattr(
        terminal.slave, termios.TCSANOW, [*terminal.attributes_before, *termios.tcgetattr(terminal.slave)[4:]]
    )
    terminal.screen.reset()
    terminal.process.send_signal(signal.SIGCONT)
    terminal.shows("default")
    eventually(lambda: terminal.attributes == ours, "the terminal is taken over")
    terminal.type("q")
    assert terminal.ends() == 0
    assert terminal.is_as_before


def test_a_lost_connection_is_shown_and_tried_again(cleanup, top):
    port = servers.unused_port()
    server = ServerThread(Config(port=port), asyncio.new_event_loop)
    address = server.address
    fill(address)
    terminal = top(address)
    terminal.shows("mail  ")
    server.stop()
    terminal.shows("; retrying")
    terminal.shows("mail  ")  # the last values are still shown
    server = ServerThread(Config(port=port), asyncio.new_event_loop)
    cleanup.callback(server.stop)
    terminal.hides("retrying")
    terminal.hides("mail  ")  # another process: nothing of the one before
    terminal.shows("default")
    terminal.type("q")
    assert terminal.ends() == 0


def test_a_user_sees_what_it_has_a_right_to(run, top):
    listeners = (ListenerConfig(address="127.0.0.1:0"), ListenerConfig(address="127.0.0.1:0", user="mail"))
    server = run(listeners=listeners, users=(UserConfig(name="mail", inspect=("mail",)),))
    everybodys, mails = server.server.listeners.addresses
    fill(everybodys)
    terminal = top(mails)
    terminal.shows("no server statistics: this user lacks the right")
    assert terminal.shows("mail  ").split()[:2] == ["mail", "3"]
    assert "bill" not in terminal.text
    terminal.type("q")
    assert terminal.ends() == 0


def test_keys_are_answered_while_the_server_is_silent(cleanup, top):
    silent = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))
    terminal = top(silent.getsockname())
    terminal.shows("no sample yet")
    terminal.type("?")
    terminal.shows("press any key to go back")
    terminal.type("?q")
    assert terminal.ends() == 0
    assert terminal.is_as_before


def test_a_server_that_talks_nonsense(cleanup, top):
    listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))

    def talk():
        with contextlib.suppress(OSError):
            while True:
                sock = listener.accept()[0]
                with sock:
                    sock.recv(1000)
                    sock.sendall(b"SSH-2.0-OpenSSH\r\n")

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    terminal = top(listener.getsockname())
    terminal.shows("invalid reply from the server")
    terminal.type("q")
    assert terminal.ends() == 0
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def beanstalk(*arguments, **environment):
    return servers.run([sys.executable, "-P", "-c", f"import sys; {BEANSTALK}", *arguments], environment)


def test_one_screen(run):
    address = run().address
    fill(address)
    done = beanstalk("top", "--server", named(address), "--once", "--interval", "0.1", COLUMNS="80", LINES="24")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert [line.split()[0] for line in lines[6:]] == ["mail", "bill", "default", "later"]
    assert "0.0/s in" in lines[2]


def test_samples_as_json(run):
    address = run().address
    fill(address)
    arguments = ("top", "--server", named(address), "--json", "--interval", "0.1", "--prefix", "bi")
    done = beanstalk(*arguments, "--once")
    (sample,) = [json.loads(line) for line in done.stdout.splitlines()]
    (tube,) = sample["tubes"]
    assert {key: tube[key] for key in ("name", "ready", "buried", "in", "growth")} == {
        "name": "bill",
        "ready": 1,
        "buried": 1,
        "in": 0.0,
        "growth": 0.0,
    }
    assert (sample["stats"]["current-tubes"], sample["rates"]["puts"], sample["matching"]) == (4, 0.0, 1)
    assert isinstance(sample["stats"]["id"], str)
    first_two = (
        f"{' '.join([sys.executable, '-P', '-c', repr('import sys; ' + BEANSTALK)])} {' '.join(arguments)} | head -n 2"
    )
    done = servers.run(["sh", "-c", first_two])
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["rates"], first["tubes"][0]["in"]) == ({}, None)
    assert second["tubes"][0]["in"] == 0.0
    assert second["time"] > first["time"]


def test_what_cannot_be_done_is_told(run):
    address = named(run().address)
    done = beanstalk("top", "--server", address)
    assert (done.returncode, done.stderr) == (
        2,
        "beanstalk top: no terminal: use --once for one screen, or --json for samples\n",
    )
    done = beanstalk("top", "--server", address, "--once", "--interval", "0.01")
    assert (done.returncode, "--interval 0.01: must be at least 0.1 seconds" in done.stderr) == (2, True)
    done = beanstalk("top", "--server", f"127.0.0.1:{servers.unused_port()}", "--once")
    assert (done.returncode, "cannot connect" in done.stderr) == (69, True)


def test_beside_beanstalkd(cleanup, top):
    server = servers.start(servers.BEANSTALKD)
    cleanup.callback(server.kill)
    fill(server.address)
    terminal = top(server.address)
    assert terminal.shows("mail  ").split()[:5] == ["mail", "3", "0", "0", "0"]
    terminal.shows("tubes 1 to 4 of 4 by ready")
    terminal.type("b")
    terminal.shows("by buried")
    terminal.type("\r")
    line = terminal.shows(" pay")
    assert line.split()[1:3] == ["ready", "5"] or line.split()[1:3] == ["buried", "5"]
    assert sum(line.endswith(" pay") for line in terminal.lines) == 2
    terminal.type("\x1b")
    terminal.shows("q quit")
    terminal.type("q")
    assert terminal.ends() == 0
    assert terminal.is_as_before


@pytest.mark.parametrize(
    ("measures", "told"),
    [
        (True, r"^waited \d\S* / \d\S* / \d\S* s, ran 0 / 0 / 0 s, late 0 / 0 / 0 s *\n+oldest ready \d\S*, overdue 0"),
        (False, "ago *$"),
    ],
)
def test_the_jobs_of_a_tube_that_is_measured_have_its_percentiles_above_them(run, top, measures, told):
    server = run(tubes=(TubeConfig(match=("mail",), measures=measures),))
    say(server.address, "use mail", *["put 0 0 60 1\r\nx"] * 2, "watch mail", "reserve")
    terminal = top(server.address)
    terminal.shows("mail  ")
    terminal.type("/ma\r\r")
    terminal.shows("the first jobs of mail in each state")
    eventually(lambda: re.search(told, terminal.text, re.MULTILINE), "what was measured is there")
