"""The recipes of the documents as a test runs them: blocks of text that are files, commands, programs and servers."""

import contextlib
import os
import re
import shlex
import stat
import subprocess
import sys

import programs
import pytest

from harness.servers import Process, accepts, command, environment_of, imported, unused_port
from harness.waiting import eventually

RUNS_WITHIN = 60
"""Seconds that a block of commands or a program may take: many times as long as usual."""

STARTS_WITHIN = 60
"""Seconds until a proxy must listen."""

DIRECTORIES = ("/etc/beanstalk", "/run/beanstalk", "/var/lib/beanstalk")
PORTS = ("11300", "11301", "11302", "11303")


def blocks(page, title):
    """The blocks of a section of a page, each with its language and its text, in their order."""
    found, language, section = [], None, ""
    for line in page.read_text().splitlines(keepends=True):
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
            if language is not None and section == title:
                found.append((language, ""))
        elif language is None and line.startswith("#"):
            section = line.strip("# \n")
        elif language is not None and section == title:
            found[-1] = (language, found[-1][1] + line)
    assert found, f"{page.name} has no section {title!r} with blocks"
    return found


@pytest.fixture
def follow(open_path):
    """Begins a recipe, ends what it has started, and makes sure that all of it was followed."""
    with contextlib.ExitStack() as stack:
        begun = []

        def begin(title, **keywords):
            programs.find("openssl")
            recipe = Recipe(title, open_path, **keywords)
            stack.callback(recipe.end)
            begun.append(recipe)
            return recipe

        yield begin
        for recipe in begun:
            recipe.check_that_all_was_run()


class Proxy:
    """A program that listens on a port and is no beanstalk server: HAProxy, stunnel, Redis."""

    def __init__(self, line, port, directory):
        self._log = (directory / f"{os.path.basename(line[0])}-{port}.log").open("w+")
        self._process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd=directory, start_new_session=True
        )
        try:
            self._wait_until_it_listens(port)
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_listens(self, port):
        eventually(lambda: self._process.poll() is not None or accepts(port), "it listens", STARTS_WITHIN)
        assert self._process.poll() is None, f"it has ended: {self.log}"

    @property
    def log(self):
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._log.close()


class Recipe:
    """One recipe, with what belongs to this machine in the place of what belongs to another.

    Attributes:
        server: the server's process, once it has been started.
        ports: the ports in the place of those of the page.
        variables: those of the environment that the page names, beside $SERVER.
    """

    def __init__(self, title, directory, page, user=None, ports=PORTS):
        self._directory = directory
        self._left = blocks(page, title)
        self._running = []
        self.server = None
        self.variables = {}
        self.ports = {port: unused_port() for port in ports}
        user = os.getuid() if user is None else user
        group = os.getgid() if user == os.getuid() else user
        here = {name: str(directory / name.removeprefix("/").replace("/", "-")) for name in DIRECTORIES}
        self._replacements = here | {
            "queue.example.com": "localhost",
            "0.0.0.0": "127.0.0.1",
            "-g shop": f"-g {group}",
            "-g haproxy": f"-g {group}",
            'uid = ["shop"]': f"uid = [{user}]",
        }
        self.configuration = directory / "etc-beanstalk"
        for name in ("etc-beanstalk", "var-lib-beanstalk", "bin"):
            (directory / name).mkdir(exist_ok=True)
        self._program("beanstalk-server", *command(imported()))

    def _program(self, name, *line):
        path = self._directory / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def of_this_machine(self, text):
        for old, new in self._replacements.items():
            text = text.replace(old, new)
        return re.sub(r"\b\d{4,5}\b", lambda found: str(self.ports.get(found[0], found[0])), text)

    @property
    def _environment(self):
        server = {"SERVER": str(self.server.pid)} if self.server else {}
        path = f"{self._directory}/bin{os.pathsep}{programs.PLACES}"
        return environment_of(imported(), {"PATH": path} | server | self.variables)

    def _next(self, language):
        self._last = self._left.pop(0)
        found, text = self._last
        assert found == language, f"the next block should be one of {language!r}:\n{text}"
        return self.of_this_machine(text)

    def write(self, language="toml"):
        """Write the next block into the file that its first line names."""
        text = self._next(language)
        path = re.match(r"[#;] (\S+)\n", text)
        assert path, f"the block begins with no path:\n{text}"
        with open(path[1], "w") as file:
            file.write(text)

    def run(self):
        """Run the next block of commands, all of which must succeed, and return what they print."""
        return self._run(["sh", "-eu", "-c", self._next("sh")])

    def run_program(self):
        """Run the next block, a program in Python, which must succeed, and return what it prints."""
        return self._run([sys.executable, "-P", "-W", "error", "-c", self._next("python")])

    def run_program_here(self):
        """Run the next block, a program in Python, in this process, which may be acting as another user."""
        exec(self._next("python"), {"__name__": "__main__"})

    def _run(self, line):
        done = subprocess.run(
            line,
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN,
            check=False,
        )
        assert done.returncode == 0, f"{line[-1]}\nended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def serve(self):
        """Start the server with the next block of commands, the last of which is it."""
        *before, last = self._next("sh").splitlines()
        assert last.startswith("beanstalk-server "), last
        text = "\n".join(["set -eu", *before, f"exec {self._directory}/bin/{last}"])
        self.server = Process(imported(), ["sh", "-c", text], directory=self._directory)
        self._running.append(self.server)

    def serve_proxy(self, port, line=None):
        """Start a proxy, or another such program, with the next block, which is its command line, or with this line."""
        program, *arguments = shlex.split(self.of_this_machine(line) if line else self._next("sh"))
        proxy = Proxy([programs.find(program), *arguments], self.ports[port], self._directory)
        self._running.append(proxy)
        return proxy

    def end(self):
        """End what has been started."""
        for process in reversed(self._running):
            process.kill()

    def again(self):
        """Let the block that was followed last be the next one once more."""
        self._left.insert(0, self._last)

    def check_that_all_was_run(self):
        assert not self._left, f"not run: {self._left}"
