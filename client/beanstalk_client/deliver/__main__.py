"""Starts a sender: `python -m beanstalk_client.deliver`, the same as `beanstalk-deliver`."""

from __future__ import annotations

import sys

from beanstalk_client.deliver.command import main

if __name__ == "__main__":
    sys.exit(main())
