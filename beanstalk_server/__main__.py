"""`python -m beanstalk_server` is `beanstalk-server`."""

import sys

from beanstalk_server.cli.server import main

sys.exit(main())
