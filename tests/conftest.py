"""Settings of the property tests: no deadline, because machines are shared; on CI the same examples in each run."""

import os

from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("default")
