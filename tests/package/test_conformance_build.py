"""What is built of conformance/: a wheel that needs nothing but Python, with every conversation.

Slow, and asks a package index for what the build requires: only `make test-all` runs it.
"""

import email
import shutil
import subprocess
import zipfile

import pytest

from beanstalk_server.version import VERSION
from harness.servers import ROOT, imported, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOT_BUILT_FROM = (".*", "build", "dist", "*.egg-info", "node_modules", "__pycache__")


@pytest.mark.parametrize("way", [(), ("--wheel",)], ids=["from the archive", "from the sources"])
def test_a_wheel_needs_nothing_and_works_alone(builder, run_alone, tmp_path, way):
    sources = shutil.copytree(
        ROOT / "conformance", tmp_path / "conformance", ignore=shutil.ignore_patterns(*NOT_BUILT_FROM)
    )
    line = [builder, "-m", "build", "--no-isolation", *way, "--outdir", tmp_path / "built", sources]
    subprocess.run(line, check=True, capture_output=True)
    (wheel,) = (tmp_path / "built").glob("*.whl")
    assert wheel.name == f"beanstalk_conformance-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "alone")
    found = [*sources.glob("*.py"), *sources.glob("conversations/*/*.txt")]
    assert files == {f"beanstalk_conformance/{path.relative_to(sources)}" for path in found}
    assert metadata.get_all("Requires-Dist") is None
    server = start(imported())
    try:
        address = "{}:{}".format(*server.address)
        report = run_alone(tmp_path / "alone", "-m", "beanstalk_conformance", address, "--only", "put-keyed")
    finally:
        server.kill()
    assert "extensions" in report
