"""Runs the checkers of other projects on the files of packaging/."""

import subprocess


def passes(*line, cwd=None):
    """Run a checker that must find nothing wrong; return what it printed.

    Raises:
        AssertionError: it has failed; the message is its output.
    """
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
