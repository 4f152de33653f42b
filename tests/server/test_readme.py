"""The listings of the README, and the program of docs/config.md, run as they stand there."""

import contextlib
import os
import re
import subprocess
import sys
import tomllib

import pytest

from harness.servers import ROOT, environment_of, imported, unused_port
from harness.waiting import eventually

README = (ROOT / "README.md").read_text()
LISTINGS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(directory, name, text, environment):
    """Write a listing into a file of this name, and run it; return what it prints."""
    (directory / name).write_text(text)
    done = subprocess.run(
        ["python", name], cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def python():
    """The environment of programs that import what the tests do."""
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    return environment_of(imported()) | {"PYTHONPATH": str(ROOT / "client"), "PATH": path}


def test_the_listings_print_what_they_say(launch, tmp_path, python):
    host, port = launch("-p", "0").address
    first, shop, order = (listing.replace("127.0.0.1:11300", f"{host}:{port}") for listing in LISTINGS)
    assert run(tmp_path, "first.py", first, python) == "send the welcome mail\n"
    assert run(tmp_path, "shop.py", shop, python) == ""
    assert run(tmp_path, "order.py", order, python) == "True\n"


def test_the_program_of_the_page_about_settings_runs(tmp_path, python):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "config.md").read_text(), re.DOTALL)
    assert re.fullmatch(r"\('\S+', \d+\)\n", run(tmp_path, "program.py", program, python))


@contextlib.contextmanager
def running(line, directory, environment):
    """A command that runs until the end of the block; gives the file with what it prints."""
    with (directory / "log").open("w+") as log:
        process = subprocess.Popen(["sh", "-c", f"exec {line}"], cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            yield lambda: (directory / "log").read_text()
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it installs the server and the client, and a busy machine takes minutes for that
def test_on_an_empty_machine(tmp_path):
    """Installed as the page says, not compiled; its own installation and worker, at another port."""
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    environment_of_user = {"HOME": str(home), "PATH": os.environ["PATH"], "BEANSTALK_SERVER_PURE": "1"}
    create, install, serve = re.search(r"```sh\n(python3 .*?)```", README, re.DOTALL)[1].splitlines()
    create = create.replace("python3 ", f"{sys.executable} ")
    done = subprocess.run(
        ["sh", "-euc", f"{create}\n{install}"], cwd=clone, env=environment_of_user, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    port = unused_port()
    path = f"{home}/queue/bin{os.pathsep}{os.environ['PATH']}"
    installed = {"HOME": str(home), "PATH": path, "BEANSTALK_SERVER_PORT": str(port)}
    first, shop, order = (listing.replace("11300", str(port)) for listing in LISTINGS)
    worker = re.search(r"```sh\n(beanstalk-worker .*)\n```", README)[1]
    with running(serve, tmp_path, installed) as said:
        eventually(lambda: "listens on" in said(), "the server listens")
        assert run(tmp_path, "first.py", first, installed) == "send the welcome mail\n"
        run(tmp_path, "shop.py", shop, installed)
        assert run(tmp_path, "order.py", order, installed) == "True\n"
        run(tmp_path, "again.py", "from shop import cancel_order; cancel_order.put(18)", installed)
        (tmp_path / "worker").mkdir()
        with running(worker, tmp_path / "worker", installed | {"PYTHONPATH": str(tmp_path)}) as printed:
            eventually(lambda: "order 18 is cancelled" in printed(), "the worker runs the task")
            assert "order 17" not in printed()


def test_all_extras_are_named():
    found = re.search(r"Its extras are (.*?)\. The server's extras are (.*?)\.\n", README, re.DOTALL).groups()
    for named, place in zip(found, ("client", "."), strict=True):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        assert re.findall(r"`(\w+)`", named) == sorted(project["optional-dependencies"])
