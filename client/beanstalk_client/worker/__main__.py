"""Starts a worker: `python -m beanstalk_client.worker`."""

from __future__ import annotations

import sys

from beanstalk_client.worker.command import main

if __name__ == "__main__":
    sys.exit(main())
