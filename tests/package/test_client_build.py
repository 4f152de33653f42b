"""What is built of client/: a wheel that needs nothing but Python, and the archive of its sources.

Slow, and asks a package index for what the build requires: only `make test-all` runs it.
"""

import email
import shutil
import subprocess
import tarfile
import zipfile

import pytest
from beanstalk_client.version import VERSION as CLIENT_VERSION

from beanstalk_server.version import VERSION
from harness.servers import ROOT, imported, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOT_BUILT_FROM = (".*", "build", "dist", "*.egg-info", "__pycache__")

STORY = """
import sys
from beanstalk_client import Client
with Client(sys.argv[1], use="t", watch="t") as queue:
    queue.put_with("x", key="k", delay=0.001)
    job = queue.reserve(timeout=10)
    queue.delete(job)
    print(job.body, sys.modules["beanstalk_client"].__file__)
"""


@pytest.fixture
def sources(tmp_path):
    return shutil.copytree(ROOT / "client", tmp_path / "client", ignore=shutil.ignore_patterns(*NOT_BUILT_FROM))


def build(builder, sources, what):
    to = sources.parent / what
    line = [builder, "-m", "build", "--no-isolation", f"--{what}", "--outdir", to, sources]
    subprocess.run(line, check=True, capture_output=True)
    (built,) = to.iterdir()
    return built


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_needs_nothing_and_works_alone(builder, run_alone, sources, tmp_path):
    wheel = build(builder, sources, "wheel")
    assert wheel.name == f"beanstalk_client-{VERSION}-py3-none-any.whl"
    assert CLIENT_VERSION == VERSION
    checked = subprocess.run([builder, "-m", "check_wheel_contents", wheel], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    found = [*sources.glob("beanstalk_client/**/*.py"), *sources.glob("beanstalk_client/console/[st]*/*.*")]
    files = {str(path.relative_to(sources)) for path in found}
    assert files_of(wheel) == {*files, "beanstalk_client/py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        archive.extractall(tmp_path / "alone")
    assert all("extra ==" in each for each in metadata.get_all("Requires-Dist", []))
    assert metadata["Requires-Python"] == ">=3.9"
    server = launch("-l", "127.0.0.1", "-p", "0")
    try:
        told = run_alone(tmp_path / "alone", "-c", STORY, "{}:{}".format(*server.address))
    finally:
        server.kill()
    body, path = told.split()
    assert body == "x"
    assert path.startswith(str(tmp_path / "alone")), imported()


def test_the_archive_of_the_sources_builds_the_same_wheel(builder, sources, tmp_path):
    with tarfile.open(build(builder, sources, "sdist")) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        assert (unpacked / name).exists()
    expected = files_of(build(builder, sources, "wheel"))
    shutil.move(unpacked, tmp_path / "again" / "client")
    assert files_of(build(builder, tmp_path / "again" / "client", "wheel")) == expected
