"""What importing the client costs: nothing of what only some programs need."""

import subprocess
import sys

import pytest

from harness.servers import ROOT


@pytest.mark.parametrize("module", ["beanstalk_client", "beanstalk_client.protocol", "beanstalk_client.blocking"])
def test_the_blocking_client_needs_neither_asyncio_nor_tls_nor_anybody_elses_package(module):
    program = f"import {module}, sys; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    found = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(ROOT / "client")},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(found.stdout.split())
    assert not loaded & {"asyncio", "ssl", "json", "concurrent", "multiprocessing"}
    assert {name for name in loaded if name not in sys.stdlib_module_names and name != "__main__"} <= {
        "beanstalk_client",
        "_virtualenv",
    }


def test_every_public_name_is_there():
    import beanstalk_client

    for name in beanstalk_client.__all__:
        assert getattr(beanstalk_client, name) is not None
