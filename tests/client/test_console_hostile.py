"""The console under attack: idle connections, wrong tokens and hostile jobs, while another user works.

The server, the console and the attacker are processes of their own. To measure:

    PYTHONPATH=.:client python tests/client/test_console_hostile.py
    PYTHONPATH=.:client python tests/client/test_console_hostile.py --idle 1000 --wrong 0 --jobs 0 --descriptors 200
"""

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

import pytest
from beanstalk_client import Client

from beanstalk_server.access.accounts import hash_of_token
from harness.servers import INTERPRETED, environment_of, launch

ROOT = "root-token-of-all-rights-" + "0" * 20
TOKENS = [f"token-of-person-{number}-" + "0" * 20 for number in range(20)]
TIMEOUT = 60.0
FORM = "application/x-www-form-urlencoded"
CSRF = re.compile('name="csrf" value="([0-9a-f]+)"')

BEANSTALK = (
    "import resource, sys; limit = int(sys.argv.pop(1));"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit));"
    "from beanstalk_client.cli.main import main; sys.exit(main())"
)


def fail(address, count):
    """Bury jobs, each with a report that is as long and as hard to match as a client can make it."""
    with Client(address, encoding=None, token=ROOT) as queue:
        queue.watch("mails")
        for number in range(count):
            queue.use("mails")
            job_id = queue.put(b"[" + b"{}," * 20_000 + b"{}]")
            queue.bury(queue.reserve(0))
            queue.use("mails.errors")
            error = f"{number} " + "'\"0x" * 10_000
            report = {"job": job_id, "tube": "mails", "task": f"t{number}", "error": error, "buried": "2026"}
            queue.put(json.dumps(report).encode())


class Person:
    """A browser: one connection, one cookie, and the seconds that each answer took."""

    def __init__(self, port):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.cookie = ""
        self.took = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def ask(self, method, path, body=None):
        began = time.monotonic()
        headers = {"cookie": self.cookie, "content-type": FORM}
        try:
            self.http.request(method, path, body, headers)
            answer = self.http.getresponse()
        except (http.client.HTTPException, ConnectionError):  # idle, so it has given its place to another one
            self.http.close()
            self.http.request(method, path, body, headers)
            answer = self.http.getresponse()
        text = answer.read().decode()
        self.took.append(time.monotonic() - began)
        if answer.headers["set-cookie"]:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer.status, text

    def sign_in(self, token):
        csrf = CSRF.search(self.ask("GET", "/login")[1])[1]
        return self.ask("POST", "/login", urlencode({"csrf": csrf, "token": token, "name": ""}))[0]


class Browsers:
    """Many browsers in one event loop: what the attacker runs, in a process of its own."""

    def __init__(self, port):
        self.port = port
        self.refused = Counter()

    async def ask(self, streams, cookie, method, path, body=""):
        """The status, the text, and the cookie from now on."""
        reader, writer = streams
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\ncontent-type: {FORM}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", answer)
        text = await reader.readexactly(int(length[1])) if length else b""
        new = re.search(r"set-cookie: ([^;]+)", answer)
        return int(answer.split()[1]), text.decode(), new[1] if new else cookie

    async def sign_in(self, streams, tokens):
        """Try tokens until one is taken; return the cookie."""
        _, text, cookie = await self.ask(streams, "", "GET", "/login")
        csrf = CSRF.search(text)[1]
        for token in tokens:
            form = urlencode({"csrf": csrf, "token": token, "name": ""})
            status, _, cookie = await self.ask(streams, cookie, "POST", "/login", form)
            if status == 303:
                break
            self.refused[status] += 1
        return cookie

    async def guess(self, number):
        """Try wrong tokens again and again."""
        tokens = (f"wrong-token-{number}-{count}" for count in itertools.count())
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the connection gave its place
                streams = await asyncio.open_connection("127.0.0.1", self.port)
                with contextlib.closing(streams[1]):
                    await self.sign_in(streams, tokens)

    async def look(self):
        """Look at the failures again and again."""
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(streams[1]):
            cookie = await self.sign_in(streams, [ROOT])
            while True:
                await self.ask(streams, cookie, "GET", "/failures")

    async def attack(self, idle, wrong, jobs):
        """Connect, wait for a line, and attack until there is no more input."""
        idlers = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(idle)]
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        tasks = [asyncio.create_task(self.guess(number)) for number in range(wrong)]
        if jobs:
            tasks.append(asyncio.create_task(self.look()))
        await asyncio.to_thread(sys.stdin.read)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        print(json.dumps(self.refused), flush=True)
        for _, writer in idlers:
            writer.close()


@contextlib.contextmanager
def server_with_users(directory):
    config = Path(directory, "server.toml")
    users = [("root", ROOT), *[(f"person-{number}", token) for number, token in enumerate(TOKENS)]]
    config.write_text(
        "[[listener]]\naddress = '127.0.0.1:0'\nauth = 'token'\n"
        + "".join(
            f"[[user]]\nname = '{name}'\ntoken-sha256 = '{hash_of_token(token)}'\nproduce = '*'\nconsume = '*'\n"
            "inspect = '*'\nadmin = '*'\n"
            for name, token in users
        )
    )
    config.chmod(0o600)
    process = launch("--config", str(config))
    try:
        yield process.address
    finally:
        process.kill()


@contextlib.contextmanager
def console_of(address, descriptors):
    line = [sys.executable, "-c", BEANSTALK, str(descriptors), "console", "{}:{}".format(*address)]
    line += ["--login", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        line, env=environment_of(INTERPRETED), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield int(re.search(r"http://.*:(\d+)/", process.stdout.readline())[1])
        finally:
            process.kill()


@contextlib.contextmanager
def attacker_of(port, idle, wrong, jobs):
    """An attacker that is connected: a line starts it; at the end of its input it prints the statuses of guesses."""
    line = [sys.executable, __file__, "--attack", str(port), f"--idle={idle}", f"--wrong={wrong}", f"--jobs={jobs}"]
    with subprocess.Popen(
        line, env=environment_of(INTERPRETED), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "connected\n"
            yield process
        finally:
            process.kill()


def under_attack(address, *, idle, wrong, jobs, descriptors, people, pause=0.0):
    """What others get during an attack, of whom one has signed in before.

    Returns:
        The statuses of their answers, the seconds of each answer of the one and of the others, and how often which
        status was the answer to a guess.
    """
    fail(address, jobs)
    with (
        console_of(address, descriptors) as port,
        attacker_of(port, idle, wrong, jobs) as attacker,
        Person(port) as known,
    ):
        statuses = {known.sign_in(ROOT)}
        known.took.clear()
        attacker.stdin.write("go\n")
        attacker.stdin.flush()
        signing = []
        for token in TOKENS[:people]:
            time.sleep(pause)
            with Person(port) as other:
                statuses |= {other.sign_in(token), other.ask("GET", "/tubes")[0]}
                signing += other.took
            statuses |= {known.ask("GET", "/tubes")[0], known.ask("GET", "/failures")[0]}
        attacker.stdin.close()
        guesses = json.loads(attacker.stdout.readline())
        return statuses, known.took, signing, guesses


@pytest.mark.sockets
def test_others_are_served_under_attack(tmp_path):
    with server_with_users(tmp_path) as address:
        statuses, _, _, guesses = under_attack(address, idle=260, wrong=20, jobs=20, descriptors=200, people=2)
    assert statuses == {200, 303}
    assert set(guesses) <= {"401"}


def main():
    parser = argparse.ArgumentParser(description="Measure how long answers of the console take under attack.")
    parser.add_argument("--idle", type=int, default=1000, metavar="N", help="idle connections")
    parser.add_argument(
        "--wrong", type=int, default=200, metavar="N", help="clients that try wrong tokens until the end"
    )
    parser.add_argument("--jobs", type=int, default=2000, metavar="N", help="hostile failed jobs")
    parser.add_argument("--descriptors", type=int, default=1024, metavar="N", help="file descriptors of the console")
    parser.add_argument("--people", type=int, default=len(TOKENS), metavar="N", help="others who sign in")
    parser.add_argument("--attack", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    port = options.pop("attack")
    if port:
        del options["descriptors"], options["people"]
        asyncio.run(Browsers(port).attack(**options))
        return
    with tempfile.TemporaryDirectory() as directory, server_with_users(directory) as address:
        statuses, known, signing, guesses = under_attack(address, **options, pause=0.2)
    for who, took in (("who had signed in", known), ("who signs in", signing)):
        print(f"{who}: median {statistics.median(took):.3f} s, worst {max(took):.3f} s, of {len(took)} answers")
    print(f"their statuses: {statuses}; of wrong tokens: {guesses}")


if __name__ == "__main__":
    main()
