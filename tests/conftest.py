"""Which package the tests run on, and the settings of the property tests.

`--package` says which: the sources as they are (the default), or the installed package, which must be compiled or
must not be. Tests that run on anything else prove nothing, so pytest stops before the first of them.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from effort import PROFILES
from hypothesis import settings

ROOT = Path(__file__).parents[1]

PACKAGES = {
    "sources": "the sources, interpreted",
    "compiled": "the installed package, compiled",
    "pure": "the installed package, interpreted",
}

# No deadline, because machines are shared.
for name, number in PROFILES.items():
    settings.register_profile(name, deadline=None, max_examples=number)
settings.load_profile("ci")

# What a shell without job control starts in the background ignores SIGINT, and so would the servers and tools that the
# tests start. A handler that does nothing is not inherited.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)


def pytest_addoption(parser, pluginmanager):
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in PACKAGES.items())
    parser.addoption("--package", choices=PACKAGES, default="sources", help=f"what the tests run on ({meanings})")
    parser.addoption("--kills", type=int, default=3, help="how often tests/cluster/test_kills.py kills in each way")
    # At once: the other conftest.py files, which import the package, are read before the options are.
    given = pluginmanager.get_plugin("pytestconfig").invocation_params.args
    if parser.parse_known_args(given).package != "sources":
        sources = [ROOT, ROOT / "client"]
        installed = [path for path in sys.path if Path(path or os.getcwd()) not in sources]
        sys.path = [*installed, *map(str, sources)]


def found_package():
    """The package that this process has imported, in the words of PACKAGES."""
    from beanstalk_server.wire import session

    path = Path(session.__file__)
    compiled = path.suffix != ".py"
    place = "the sources" if path.parents[2] == ROOT else "the installed package"
    return f"{place}, {'compiled' if compiled else 'interpreted'}", path.parents[2]


def pytest_configure(config):
    asked = PACKAGES[config.getoption("package")]
    found, path = found_package()
    if found != asked:
        raise pytest.UsageError(f"--package asks for {asked}; what is imported is {found} (from {path})")


def pytest_collection_modifyitems(config, items):
    if config.getoption("package") == "compiled":
        left_out = [item for item in items if item.get_closest_marker("interpreted")]
        items[:] = [item for item in items if not item.get_closest_marker("interpreted")]
        config.hook.pytest_deselected(items=left_out)


def pytest_report_header():
    return "beanstalk_server: {}, from {}".format(*found_package())
