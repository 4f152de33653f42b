"""Runs the relay of an outbox: `python -m beanstalk_client.outbox`."""

from __future__ import annotations

import contextlib
import sys

from beanstalk_client.outbox.command import main

if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
