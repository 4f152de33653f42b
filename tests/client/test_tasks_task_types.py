"""What a type checker knows of tasks: their arguments and results, also where they are put."""

import os
import re
import subprocess
import sys

import pytest

from harness.servers import ROOT

PROGRAM = """
from beanstalk_client import Tasks
tasks = Tasks()
@tasks.task
def plain(x: int, *, y: str = "") -> float: return 1.0
@tasks.task(tube="mail")
async def waiting(x: int) -> str: return ""
reveal_type(plain(1, y="2"))
reveal_type(plain.put(1))
plain.put("x")
plain.delay(3).key("x").put(1, y="3")
plain.delay(3).put(1, z=3)
async def story() -> None:
    reveal_type(await waiting(3))
    reveal_type(await waiting.aput(3))
    await waiting.at(3).aput("3")
plain.delay("5m").put(1)
Tasks(token="x", timeout="9s")
Tasks(tokn="x")
tasks.connect(timeout=[])
"""


@pytest.mark.slow
def test_a_type_checker_sees_wrong_arguments(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "program.py"],
        env={**os.environ, "MYPYPATH": str(ROOT / "client")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r'Revealed type is "(?:builtins\.)?(\w+)"', done.stdout) == ["float", "int", "str", "int"]
    assert re.findall(r"program.py:(\d+): error: (.{11})", done.stdout) == [
        ("10", "Argument 1 "),
        ("12", "Unexpected "),
        ("16", "Argument 1 "),
        ("19", "Unexpected "),
        ("20", 'Argument "t'),
    ]
