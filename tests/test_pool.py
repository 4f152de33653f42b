"""The pool of workers: a run in which tests were neither run nor left out for want of time fails, and says which."""

import os
import re
import subprocess
import sys

import pytest

from harness.servers import ROOT
from harness.waiting import WITHIN

pytestmark = pytest.mark.slow  # each test starts runs of pytest

GOOD = "def test_a(): pass\ndef test_b(): pass\n"
CRASHING = "import os\ndef test_a(): pass\ndef test_crash(): os._exit(3)\ndef test_b(): pass\n"
SOON_OVER = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    pools = [each for each in config.pluginmanager.get_plugins() if type(each).__name__ == "Pooled"]
    if pools:
        config.pluginmanager.register(Hurry(pools[0]))

class Hurry:
    def __init__(self, pooled):
        self.pooled = pooled

    def pytest_runtest_logreport(self):
        self.pooled.pool.deadline = 0
"""


@pytest.fixture
def pool(tmp_path):
    """Runs files of tests in a pool, as `make test` does; returns the status and what was printed."""

    def run(*options, workers=1, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "pytest.ini").touch()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TEST_"))}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT), str(ROOT / "client"), "."])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--dist", "load"]
        command += ["--tx", f"{workers}*popen//env:TEST_PACKAGE=sources", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=2 * WITHIN, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_what_a_worker_that_crashes_has_not_run_is_run_by_another(pool):
    status, printed = pool(test_one=CRASHING, test_two=GOOD)
    assert (status, "crashed while running 'test_one.py::test_crash'" in printed) == (1, True)
    assert "1 failed, 4 passed" in printed


def test_what_nobody_is_left_to_run_is_named(pool):
    status, printed = pool("--max-worker-restart", "0", test_one=CRASHING, test_two=GOOD)
    named = re.findall("(.*) was not run: its worker ended before it did", printed)
    assert (status, named) == (1, ["test_one.py::test_b", "test_two.py::test_a", "test_two.py::test_b"]), printed


COLLECTING = {
    "raise ImportError('odd')": "ERROR collecting test_one.py",
    "os._exit(0)": "no test was run: not all workers could collect their tests",
}


@pytest.mark.parametrize("fault", COLLECTING)
def test_a_worker_that_cannot_collect_a_file_fails_the_run(pool, fault):
    odd = f"import os\nif os.environ['PYTEST_XDIST_WORKER'] == 'gw0': {fault}\n"
    status, printed = pool("--max-worker-restart", "0", workers=2, test_one=odd + GOOD, test_two=GOOD)
    assert (status != 0, COLLECTING[fault] in printed) == (True, True)


def test_a_seed_that_is_not_a_number_is_told_in_a_line(pool, monkeypatch):
    monkeypatch.setenv("SEED", "abc")
    assert pool(test_one=GOOD) == (1, "SEED is 'abc': must be a whole number\n")


def test_files_that_time_is_over_for_are_named_and_fail_nothing(pool):
    files = {f"test_{number}": GOOD for number in range(4)}
    status, printed = pool("-p", "hurry", hurry=SOON_OVER, **files)
    assert (status, "time was over: left out 4 tests of 2 files:\n    test_2.py\n    test_3.py\n" in printed) == (
        0,
        True,
    )


def test_a_run_without_time_for_any_test_fails(pool):
    status, printed = pool("--minutes", "0", test_one=GOOD)
    assert (status, "time was over: left out 2 tests of 1 files:\n    test_one.py\n" in printed) == (5, True)
