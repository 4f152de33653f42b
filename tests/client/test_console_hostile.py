"""The console under attack, as a whole: idle connections, wrong tokens and hostile jobs, while another user works.

To measure: `PYTHONPATH=.:client python tests/client/test_console_hostile.py`.
"""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlencode

import pytest
from beanstalk_client import Client

from beanstalk_server import Config, ListenerConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from harness.in_thread import ServerThread
from harness.servers import INTERPRETED, environment_of

ROOT = "root-token-of-all-rights-" + "0" * 20
TIMEOUT = 60.0
DESCRIPTORS = 200

BEANSTALK = (
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}));"
    "import sys; from beanstalk_client.cli.main import main; sys.exit(main())"
)


def config():
    rights = dict.fromkeys(("produce", "consume", "inspect", "admin"), ("*",))
    root = UserConfig(name="root", token_sha256=(hash_of_token(ROOT),), **rights)
    return Config(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(root,))


def fail(address, count):
    """Bury jobs, each with a report that is as long and as hard to match as a client can make it."""
    with Client(address, encoding=None, token=ROOT) as queue:
        queue.use("mails.errors")
        for number in range(1, count + 1):
            error = f"{number} " + "'\"0x" * 15_000
            report = {"job": 2 * number, "tube": "mails", "task": f"t{number}", "error": error, "buried": "2026"}
            queue.put_with(json.dumps(report).encode()[:65_000], key=f"job-{2 * number}")
            queue.use("mails")
            queue.put(b"[" + b"{}," * 20_000 + b"{}]")
            queue.watch("mails")
            queue.bury(queue.reserve(0))
            queue.use("mails.errors")


class Person:
    """A browser: one connection, one cookie."""

    def __init__(self, port):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        self.cookie = ""
        self.longest = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def ask(self, method, path, body=None):
        began = time.monotonic()
        headers = {"cookie": self.cookie, "content-type": "application/x-www-form-urlencoded"}
        try:
            self.http.request(method, path, body, headers)
            answer = self.http.getresponse()
        except (http.client.HTTPException, ConnectionError):  # idle, so it has given its place to another one
            self.http.close()
            self.http.request(method, path, body, headers)
            answer = self.http.getresponse()
        text = answer.read().decode()
        self.longest = max(self.longest, time.monotonic() - began)
        if answer.headers["set-cookie"]:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer.status, text

    def sign_in(self, token):
        csrf = re.search('name="csrf" value="([0-9a-f]+)"', self.ask("GET", "/login")[1])[1]
        return self.ask("POST", "/login", urlencode({"csrf": csrf, "token": token, "name": ""}))[0]


@contextlib.contextmanager
def console_of(address):
    line = [sys.executable, "-c", BEANSTALK, "console", "{}:{}".format(*address), "--login", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, env=environment_of(INTERPRETED), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(re.search(r"http://.*:(\d+)/", process.stdout.readline())[1])
        finally:
            process.kill()


def attack(address, idle, wrong, jobs, views):
    """What another user gets meanwhile: the statuses of signing in and of pages, and the longest time of an answer."""
    fail(address, jobs)
    with console_of(address) as port, contextlib.ExitStack() as stack:
        admin = stack.enter_context(Person(port))
        statuses = [admin.sign_in(ROOT)]
        for _ in range(idle):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
        refused = []

        def guess():
            lost = contextlib.suppress(OSError, http.client.HTTPException)  # its connection gave its place
            with lost, Person(port) as guessing:
                refused.append(guessing.sign_in("wrong-token-" * 3))

        def view():
            with contextlib.suppress(OSError, http.client.HTTPException):
                for _ in range(views):
                    admin.ask("GET", "/failures")

        threads = [threading.Thread(target=guess) for _ in range(wrong)] + [threading.Thread(target=view)]
        for each in threads:
            each.start()
        other = stack.enter_context(Person(port))
        statuses.append(other.sign_in(ROOT))
        for _ in range(views):
            statuses.append(other.ask("GET", "/tubes")[0])
        for each in threads:
            each.join()
        statuses.append(admin.ask("GET", "/failures")[0])
        return statuses, refused, other.longest


@pytest.mark.sockets
def test_another_user_is_served_under_attack(run):
    server = run(listeners=config().listeners, users=config().users)
    statuses, refused, _ = attack(server.address, DESCRIPTORS + 60, 20, 20, 3)
    assert statuses == [303, 303, 200, 200, 200, 200]
    assert set(refused) <= {401}


if __name__ == "__main__":
    measured = ServerThread(config(), asyncio.new_event_loop)
    statuses, refused, longest = attack(measured.address, 1000, 200, 2000, 10)
    measured.stop()
    print(f"{longest:.3f} s: the longest answer; {set(statuses)}, {len(refused)} wrong tokens answered: {set(refused)}")
