"""A newcomer who types what docs/tutorial.md says sees what it shows, from the first block to the last."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

import programs
import pytest
from beanstalk_client import AsyncClient, Client
from beanstalk_client.schedules.scheduler import GROUP
from beanstalk_client.tasks.failure import ERRORS
from beanstalk_client.tasks.reports import forget_gone
from recipes import Recipe, blocks

from harness.servers import ROOT, accepts, command, imported
from harness.waiting import eventually

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "tutorial.md"

SECTIONS = [line.strip("# \n") for line in PAGE.read_text().splitlines() if line.startswith("## ")]

PORTS = ("11300", "8000", "9113")

SERVER, OPERATOR, DELIVERER = "beanstalk-server", "beanstalk", "beanstalk-deliver"
WORKER, PYTHON = "beanstalk-worker", "python"

COMES_WITHIN = 60
"""Seconds until a worker must have printed something: several times what the page's delays take."""

AN_HOUR = 3600
"""Seconds that a newcomer may pause between two commands. What ends sooner has ended before the second one."""

PLANNED = {"reports", GROUP}
"""The tubes of the tutorial's schedules, which always have delayed jobs."""

LEFT_OUT = "[…]"

OTHERWISE = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "TIME"),
    (r"\bport=\d+, ", ""),  # which the page leaves to its default
    (r":\d{4,5}\b", ":PORT"),
    (r"worker \S+:\S+", "worker HOST"),
    (r"\((pure Python|compiled)\)", "(…)"),
    (r"retrying in [\d.]+ s", "retrying in a while"),
)
"""What is another thing each time, and what it is compared as."""


def compared(text):
    """The lines of what is printed, without what is another thing each time."""
    for pattern, same in OTHERWISE:
        text = re.sub(pattern, same, text)
    return text.splitlines()


def shows(printed, shown):
    """Whether all that a page shows was printed, in that order; between two of its lines only where it leaves some out.

    What is printed before and after it does not count.
    """
    pattern = "".join(
        r"(?:.*\n)*?" if line == LEFT_OUT else r"[^\n]*".join(map(re.escape, line.split(LEFT_OUT))) + r"\n"
        for line in compared(shown)
    )
    return re.search(f"^{pattern}", "".join(f"{line}\n" for line in compared(printed)), re.MULTILINE) is not None


class Running:
    """A program that runs in a terminal of its own, until somebody presses Ctrl-C there."""

    def __init__(self, text, directory, environment):
        *before, last = text.strip().splitlines()
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by kill()
        self._process = subprocess.Popen(
            ["sh", "-euc", "\n".join([*before, f"exec {last}"])],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )

    @property
    def printed(self):
        assert self._process.poll() is None, f"it has ended: {self._read()}"
        return self._read()

    def _read(self):
        return os.pread(self._output.fileno(), 1 << 20, 0).decode()

    def press_ctrl_c(self):
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(COMES_WITHIN)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def pause(port):
    """Bring about at once what an hour without a command would: no delay is left, and reports of deleted jobs are gone.

    No job may have less time than that, or it would have to be gone, too.
    """
    with Client(("127.0.0.1", port)) as queue:

        def jobs(*states):
            tubes = set(queue.tubes()) - PLANNED
            return [job for tube in tubes for state in states for job in queue.list_jobs(tube, state)]

        def is_left():
            return any(job["delay"] < AN_HOUR for job in jobs("delayed"))

        eventually(lambda: not is_left(), "no delay is left", COMES_WITHIN)
        assert [job for job in jobs("ready", "buried") if 0 < job.get("expires-in", 0) < AN_HOUR] == []
        errors = [tube for tube in queue.tubes() if tube.endswith(ERRORS)]

    async def look_at_reports():
        async with AsyncClient(("127.0.0.1", port), encoding=None) as client:
            await forget_gone(client, errors)

    asyncio.run(look_at_reports())


class Tutorial(Recipe):
    """The whole page, as one story.

    Args:
        commands: what is called by the names on the page: those of SERVER, OPERATOR, DELIVERER, WORKER and PYTHON.
        variables: of the environment, besides.

    Attributes:
        pauses: whether the newcomer pauses before each command while the server runs.
    """

    pauses = False

    def __init__(self, directory, commands, variables):
        super().__init__(SECTIONS[0], directory, page=PAGE, ports=PORTS)
        self._left = [block for section in SECTIONS if "```" in text_of(section) for block in blocks(PAGE, section)]
        port = str(self.ports["11300"])
        for name, line in commands.items():
            server = ["--server", f"127.0.0.1:{port}"] if name in (OPERATOR, DELIVERER) else []
            self._program(name, *line, *server)
        self.variables = variables | {"BEANSTALK_SERVER_PORT": port}
        self.printed = ""

    def skip(self):
        """Leave out the next block; return it."""
        return self._left.pop(0)[1]

    def run_in(self, directory):
        """Run the next block of commands in this directory, with the Python that runs the tests."""
        text = self._next("sh").replace("python3 ", f"{sys.executable} ")
        done = subprocess.run(
            ["sh", "-euc", text], cwd=directory, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}: {done.stdout}{done.stderr}"

    def run(self):
        self.printed = ""
        for line in self._next("sh").splitlines():
            self._pause()
            self.printed += self._run(["sh", "-euc", line])

    def _pause(self):
        port = self.ports["11300"]
        if self.pauses and accepts(port):
            pause(port)

    def follow_access(self, section):
        """Run the first block of this section of docs/access.md."""
        language, text = blocks(ROOT / "docs" / "access.md", section)[0]
        assert language == "sh"
        self._run(["sh", "-eu", "-c", text])

    def write(self, language="python"):
        """Write the next block into the file that its first line names, or to its end."""
        text = self._next(language)
        name, at_end = re.match(r"# (\S+?)(, at its end)?\n", text).groups()
        with (self._directory / name.lstrip("/").replace("/", "-")).open("a" if at_end else "w") as file:
            file.write(("\n\n" if at_end else "") + text)

    def start(self):
        """Start the program that the next block names."""
        self._pause()
        started = Running(self._next("sh"), self._directory, self._environment)
        self._running.append(started)
        return started

    def start_again(self, running):
        """Press Ctrl-C, and start the program of the next block."""
        self._pause()
        running.press_ctrl_c()
        return self.start()

    def look(self):
        """What was run last has printed what the next block shows."""
        shown = self._next("text")
        assert shows(self.printed, shown), f"{shown}\nis shown, and this was printed:\n{self.printed}"

    def wait_for(self, running):
        """What runs prints what the next block shows."""
        shown = self._next("text")
        eventually(lambda: shows(running.printed, shown), f"it prints\n{shown}", COMES_WITHIN)


def text_of(section):
    return PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]


def calls(module):
    """The command line that calls the function `main` of a module."""
    return sys.executable, "-P", "-c", f"import sys; from {module} import main; sys.exit(main())"


@pytest.fixture
def begin(open_path):
    """Begins the tutorial, and ends what it has started."""
    for program in ("curl", "openssl"):
        programs.find(program)
    with contextlib.ExitStack() as stack:

        def begin(commands, variables):
            tutorial = Tutorial(open_path, commands, variables)
            stack.callback(tutorial.end)
            return tutorial

        yield begin


@pytest.mark.slow
def test_from_nothing_to_a_worker_in_production(begin):
    commands = {
        SERVER: command(imported()),
        OPERATOR: calls("beanstalk_client.cli.main"),
        DELIVERER: calls("beanstalk_client.deliver.command"),
        WORKER: calls("beanstalk_client.worker.command"),
        PYTHON: [sys.executable],
    }
    tutorial = begin(commands, {"PYTHONDONTWRITEBYTECODE": "1"})
    tutorial.skip()  # what installs it
    tutorial.skip()  # and where that is
    tutorial.pauses = True
    follow(tutorial)


@pytest.mark.timeout(600)  # it installs three packages, and a busy machine takes minutes for that
def test_on_an_empty_machine(begin, tmp_path, open_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    home = tmp_path / "home"
    names = (SERVER, OPERATOR, DELIVERER, WORKER, PYTHON)
    installed = {name: [str(home / "queue" / "bin" / name)] for name in names}
    tutorial = begin(installed, {"HOME": str(home), "PYTHONPATH": ""})
    tutorial.run_in(clone)
    assert "queue/bin" in tutorial.skip()
    follow(tutorial)


def follow(tutorial):
    """Type all blocks but those that install it, and look at what comes back."""
    server = tutorial.start()
    tutorial.wait_for(server)
    tutorial.run()
    tutorial.look()
    tutorial.run()
    tutorial.look()
    work = tutorial.start()
    tutorial.wait_for(work)
    work.press_ctrl_c()
    tutorial.write()
    tutorial.run()
    tutorial.look()
    # a task
    tutorial.write()
    worker = tutorial.start()
    tutorial.wait_for(worker)
    tutorial.run()
    tutorial.wait_for(worker)
    # one that fails
    tutorial.write()
    worker = tutorial.start_again(worker)
    tutorial.run()
    tutorial.wait_for(worker)
    tutorial.run()
    tutorial.look()
    # one that is called off
    tutorial.write()
    worker = tutorial.start_again(worker)
    tutorial.write()
    tutorial.run()
    tutorial.look()
    tutorial.wait_for(worker)
    assert "order 17" not in worker.printed
    # one that comes again
    tutorial.write()
    worker = tutorial.start_again(worker)
    tutorial.wait_for(worker)
    worker.press_ctrl_c()
    # a callback
    tutorial.write()
    receiver = tutorial.start()
    tutorial.start()
    tutorial.write()
    tutorial.run()
    tutorial.wait_for(receiver)
    # in production
    tutorial.write("ini")
    server.press_ctrl_c()
    server = tutorial.start()
    eventually(lambda: "listens on" in server.printed, "its jobs are there again")
    tutorial.run()
    tutorial.look()
    # on a network
    tutorial.follow_access("Try TLS and a token")
    server.press_ctrl_c()
    server = tutorial.start()
    eventually(lambda: "listens on" in server.printed, "it listens")
    tutorial.pauses = False  # from now on, no worker without a token can change what the server has
    tutorial.write()
    tutorial.run()
    tutorial.look()
    tutorial.check_that_all_was_run()


def test_the_unit_of_the_worker_is_one(tmp_path):
    unit = dict(blocks(PAGE, "Run in production"))["ini"]
    program = re.search(r"^ExecStart=(\S+)", unit, re.MULTILINE)[1]
    path = tmp_path / "shop-worker.service"
    path.write_text(unit.replace(program, "/bin/true"))
    done = subprocess.run(
        [programs.find("systemd-analyze", "systemd"), "verify", path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_shown_is_compared_but_for_what_is_another_thing_each_time():
    printed = "2026-01-02 03:04:05,678 INFO worker b:77 takes jobs\nx\ny\nz\n"
    assert shows(printed, "2027-01-04 08:00:00,000 INFO worker host:4711 takes jobs\n[…]\nz\n")
    assert shows(printed, "[…] takes […]\nx\ny\n")
    assert not shows(printed, "x\nz\n")
    assert not shows(printed, "2027-01-04 08:00:00,000 INFO worker host:4711 takes no jobs\n")
