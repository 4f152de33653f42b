"""Builds what an index is given: the archives of the sources, and wheels; checks them, and prints their sizes.

`python -m harness.wheels dist`: for the client and the conformance suite a pure wheel, for the server a pure one and a
compiled one for this Python, which `auditwheel` makes fit for other distributions of Linux. Wheels are built from the
archives, so an archive that lacks a file fails here. Each wheel of the server is installed into an empty environment,
together with the pure ones: a job is put and taken, and some conversations are held. cibuildwheel builds the compiled
wheels for other versions of Python (.github/workflows/release.yml).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.servers import ROOT, Process

TOOLS = Path(sys.executable).parent
PROJECTS = [ROOT, ROOT / "client", ROOT / "conformance"]
"""The directories of the distributions, the server's first."""
STORY = """
import sys
from beanstalk_client import Client
with Client(sys.argv[1]) as queue:
    put = queue.put("hello")
    job = queue.reserve(timeout=10)
    queue.delete(job)
    assert (job.id, job.body) == (put, "hello"), job
"""


def run(*line: str | Path, **environment: str) -> None:
    """Run a tool of this environment; end with what it said if it fails."""
    path = os.pathsep.join([str(TOOLS), os.environ["PATH"]])
    command = [str(TOOLS / line[0]), *map(str, line[1:])]
    done = subprocess.run(
        command,
        env=os.environ | {"PATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)} failed with exit status {done.returncode}")


def build(to: Path, work: Path) -> list[Path]:
    """Build everything into `to`; return the wheels of the server."""
    build = ("python", "-m", "build", "--no-isolation")
    for project in PROJECTS:
        name = "server" if project == ROOT else project.name
        print(f"building the {name}: the sdist, and a pure-Python wheel from it", flush=True)
        run(*build, "--outdir", to, project, BEANSTALK_SERVER_PURE="1")
    print("building the server's compiled wheel from the sdist", flush=True)
    (archive,) = to.glob("beanstalk_server-*.tar.gz")
    shutil.unpack_archive(archive, work)
    objects = ROOT / "build" / "objects"  # what has been compiled before is not compiled again
    objects.mkdir(parents=True, exist_ok=True)
    unpacked = work / archive.name.removesuffix(".tar.gz")
    (unpacked / "build").mkdir(exist_ok=True)
    (unpacked / "build" / "objects").symlink_to(objects)
    run(*build, "--wheel", "--outdir", work, unpacked, BEANSTALK_SERVER_PURE="0")
    run("auditwheel", "repair", "--strip", "--wheel-dir", to, *work.glob("*.whl"))
    return sorted(to.glob("beanstalk_server-*.whl"))


def check(built: Sequence[Path]) -> None:
    """Ask the tools that an index and packagers ask."""
    run("twine", "check", "--strict", *built)
    run("check-wheel-contents", *(path for path in built if path.suffix == ".whl"))


def use(wheels: Sequence[Path], work: Path) -> None:
    """Install wheels into an empty environment; put a job into a server that is started there, take it, and hold some
    conversations.
    """
    place = Path(tempfile.mkdtemp(dir=work))
    run("python", "-m", "venv", place)
    python = str(place / "bin" / "python")
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *map(str, wheels)]
    subprocess.run(install, check=True)
    server = Process(wheels[0].name, [str(place / "bin" / "beanstalk-server"), "-p", "0"])
    try:
        address = ":".join(map(str, server.address))
        subprocess.run([python, "-c", STORY, address], check=True, cwd=place, timeout=60)
        subprocess.run(
            [place / "bin" / "beanstalk-conformance", address, "--only", "put-keyed"], check=True, timeout=60
        )
        kind = "pure Python" if wheels[0].name.endswith("-none-any.whl") else "compiled"
        if f"({kind})" not in server.log:
            sys.exit(f"{wheels[0].name} is not {kind}: {server.log}")
    finally:
        server.stop()


def make(to: Path) -> None:
    """Build into this directory, which is emptied first; check and try what is built."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        wheels = build(to, Path(directory))
        check(sorted(to.iterdir()))
        pure = [*to.glob("beanstalk_client-*.whl"), *to.glob("beanstalk_conformance-*.whl")]
        names = " and ".join(path.name for path in pure)
        for wheel in wheels:
            print(f"testing {wheel.name} with {names} in a new virtual environment", flush=True)
            use([wheel, *pure], Path(directory))


def show(built: Path) -> None:
    """Print the names and sizes of the files in this directory."""
    for path in sorted(built.iterdir()):
        print(f"{path.stat().st_size / 1000:8,.0f} kB  {path.name}")


if __name__ == "__main__":
    place = Path(sys.argv[1]).absolute()
    make(place)
    show(place)
