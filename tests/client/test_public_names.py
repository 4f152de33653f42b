"""What editors and type checkers show of the client's public names: a docstring with an example, and a type."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import beanstalk_client
import pytest
from beanstalk_client import AsyncClient, Client, schedules, tasks
from beanstalk_client.pipeline import AsyncPipeline, Pipeline
from beanstalk_client.tasks import Call, Result, ResultCall, Run, Task, Tasks

# Where pyright is, and which Python it asks for packages: the first one.
PROGRAMS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
PYRIGHT = shutil.which("pyright", path=PROGRAMS)

WITH_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
MODULES = (beanstalk_client, tasks, schedules)
CLASSES = (Client, AsyncClient, Pipeline, AsyncPipeline, Tasks, Task, Call, ResultCall, Result, Run)


def documented(module, name):
    """The docstring of a name that a module defines or imports; that of a constant stands below it."""
    found = getattr(module, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return inspect.getdoc(found)
    body = ast.parse(inspect.getsource(module)).body
    for number, statement in enumerate(body):
        if isinstance(statement, ast.ImportFrom):
            for each in statement.names:
                if (each.asname or each.name) == name:
                    return documented(sys.modules[statement.module], each.name)
        for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
            if getattr(target, "id", None) == name:
                below = body[number + 1]
                is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                return inspect.cleandoc(below.value.value) if is_text else None
    return None


def names_of(owner):
    """The public names of a module or a class, with their docstrings."""
    if inspect.ismodule(owner):
        return {name: documented(owner, name) for name in owner.__all__}
    public = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}
    return {
        name: inspect.getdoc(value) for name, value in public.items() if callable(value) or isinstance(value, property)
    }


def trouble(name, text):
    """What is wrong with the docstring of a name, or ""."""
    section = re.search(r"^Example:\n((?: {4}.*\n?|\n)+)", text or "", re.MULTILINE)
    if section is None:
        return "its docstring has no section Example:"
    example = textwrap.dedent(section[1]).strip()
    if name not in example:
        return "its example does not use it"
    try:
        compile(f"try: ...\n{example}" if example.startswith("except ") else example, name, "exec", WITH_AWAIT)
    except SyntaxError as error:
        return f"its example is no Python: {error}"
    return ""


@pytest.mark.parametrize("owner", [*MODULES, *CLASSES], ids=lambda owner: owner.__name__)
def test_each_public_name_has_a_docstring_with_an_example(owner):
    found = {name: trouble(name, text) for name, text in names_of(owner).items()}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.sockets
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed")
def test_a_type_checker_knows_the_type_of_every_public_name(tmp_path):
    environment = {**os.environ, "PATH": PROGRAMS, "PYTHONPATH": str(Path(beanstalk_client.__file__).parents[1])}
    done = subprocess.run(
        [PYRIGHT, "--verifytypes", "beanstalk_client", "--ignoreexternal", "--outputjson"],
        env=environment,
        cwd=tmp_path,  # where no package is
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = json.loads(done.stdout)["typeCompleteness"]
    unknown = [
        f"{each['name']}: {'; '.join(what['message'] for what in each['diagnostics'])}"
        for each in found["symbols"]
        if not each["isTypeKnown"] and each["isExported"] and ".django." not in each["name"]  # Django has no types
    ]
    assert (unknown, found["symbols"] != []) == ([], True)
