"""What is built from the sources: wheels, compiled as a whole or not at all, and the archive of the sources.

Slow, and asks a package index for what the build requires: only `make test-all` runs it.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from harness.servers import OURS, ROOT, Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOT_BUILT_FROM = (".*", "build", "dist", "*.egg-info", "node_modules", "__pycache__", "bench-*")


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources, to build from and to leave things in."""
    return shutil.copytree(ROOT, tmp_path / "sources", ignore=shutil.ignore_patterns(*NOT_BUILT_FROM))


def build(builder, sources, *what, **environment):
    """Build a wheel, or what is asked for; return its path, or None when the build fails, and what was said."""
    to = sources.parent / "built"
    kept = {
        name: value for name, value in os.environ.items() if name not in ("BEANSTALK_SERVER_PURE", "CC", "LDSHARED")
    }
    done = subprocess.run(
        [builder, "-m", "build", "--no-isolation", *(what or ("--wheel",)), "--outdir", to, sources],
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return (next(to.iterdir()) if done.returncode == 0 else None), done.stdout


def modules_of(sources):
    return {str(path.relative_to(sources)) for path in sources.glob("beanstalk_server/**/*.py")}


def files_of(wheel):
    """What a wheel installs, but for what describes it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.parametrize(
    "compiler", ["/bin/false", "/bin/true", "/nowhere/cc"], ids=["fails", "makes nothing", "is not there"]
)
def test_where_the_compiler_is_of_no_use_the_package_is_pure_python_works_and_says_so(
    builder, sources, tmp_path, compiler
):
    wheel, said = build(builder, sources, CC=compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "the package will be pure Python: " in said
    assert files_of(wheel) == {*modules_of(sources), "beanstalk_server/py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    installed = {"PYTHONPATH": str(tmp_path / "installed")}
    server = Process(OURS, [sys.executable, "-P", "-m", "beanstalk_server", "-p", "0"], environment=installed)
    assert "(pure Python) listens on" in server.log
    assert server.stop() == 0


def test_a_compiler_that_fails_can_be_an_error(builder, sources):
    wheel, said = build(builder, sources, CC="/bin/false", BEANSTALK_SERVER_PURE="0")
    assert wheel is None
    assert "/bin/false" in said


COMPILER = """#!/bin/sh
for argument; do case "$argument" in *.o) grep -qs damaged "$argument" && exit 1;; esac; done
while test "$1" != -o; do shift; done
echo made > "$2"
"""


def test_a_kept_object_that_is_damaged_is_made_anew(builder, sources, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    first, _ = build(builder, sources, CC=str(compiler))
    compiled = files_of(first)
    first.unlink()
    kept = sorted((sources / "build/objects").iterdir())
    kept[0].write_text("damaged")
    again, said = build(builder, sources, CC=str(compiler))
    assert "compiling everything anew" in said
    assert files_of(again) == compiled > modules_of(sources)
    assert sorted((sources / "build/objects").iterdir()) == kept


def test_nothing_that_is_left_of_earlier_builds_gets_into_a_wheel(builder, sources):
    expected = {*modules_of(sources), "beanstalk_server/py.typed"}
    for left in (
        "build/lib/beanstalk_server/removed.py",
        "build/lib.linux-x86_64-cpython-311/beanstalk_server/queue/ring.cpython-311-x86_64-linux-gnu.so",
        "beanstalk_server/queue/ring.cpython-311-x86_64-linux-gnu.so",
    ):
        (sources / left).parent.mkdir(parents=True, exist_ok=True)
        (sources / left).write_text("left")
    wheel, _ = build(builder, sources, BEANSTALK_SERVER_PURE="1")
    assert files_of(wheel) == expected


def test_no_compiled_modules_are_put_beside_the_sources(builder, sources):
    done = subprocess.run(
        [builder, "setup.py", "build_ext", "--inplace"], cwd=sources, capture_output=True, text=True, check=True
    )
    assert "would hide every change" in done.stderr
    assert not list(sources.rglob("*.so"))


def test_the_archive_of_the_sources_has_what_the_tests_need_and_builds_the_same_wheel(builder, sources):
    archive, _ = build(builder, sources, "--sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(sources.parent / "unpacked", filter="data")
    (unpacked,) = (sources.parent / "unpacked").iterdir()
    for path in sources.rglob("*"):
        relative = path.relative_to(sources)
        assert path.is_dir() or (unpacked / relative).exists(), f"{relative} is missing"
    archive.unlink()
    wheel, _ = build(builder, unpacked, BEANSTALK_SERVER_PURE="1")
    assert files_of(wheel) == {*modules_of(sources), "beanstalk_server/py.typed"}
