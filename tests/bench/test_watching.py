"""What `beanstalk top` costs is measured: with a few tubes, for a moment."""

import pytest

from bench import watching
from harness.servers import INTERPRETED

pytestmark = pytest.mark.slow


def test_top_is_measured_with_and_without_load(capsys):
    arguments = ["--server", INTERPRETED, "--tubes", "30", "--seconds", "0.2", "--times", "1", "--interval", "0.1"]
    watching.main([*arguments, "--rate", "300"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("server without top ")
    assert lines[1].startswith("top costs the server ")
    assert float(lines[2].split()[3]) > 0
