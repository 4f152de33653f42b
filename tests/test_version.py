"""The version that `stats` tells, by the rules of those who read it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from beanstalk_server import __version__
from beanstalk_server.version import PROTOCOLS, VERSION

# semver.org, "Is there a suggested regular expression?", without names
SEMANTIC = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-(?:(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+(?:[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)


def as_semantic(version):
    return tuple(int(number) for number in SEMANTIC.fullmatch(version).groups())


def as_fivebeans(version):
    """fivebeans, in JavaScript: beanstalkd's versions have two numbers, so it adds a third; a fourth goes again."""
    version += ".0"
    if re.search(r"\d+\.\d+\.\d+\.\d+", version):
        version = re.sub(r"\.\d+$", "", version)
    return as_semantic(version)


def as_php(version):
    """PHP's version_compare: the numbers, in their order, up to the first word."""
    return tuple(int(number) for number in re.match(r"[\d.]+", version)[0].split("."))


def as_perl(version):
    """Perl's version->parse, which dies of anything else than digits and dots."""
    return tuple(int(number) for number in re.fullmatch(r"\d+(?:\.\d+)+", version)[0].split("."))


def as_python(version):
    return Version(version).release


@pytest.mark.parametrize("reading", [as_fivebeans, as_php, as_perl, as_python])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_asks_for_beanstalkd_1_8_or_newer_finds_it(reading, protocol):
    major, minor = map(int, protocol.split("."))
    assert (1, 8) <= reading(protocol)[:2] == (major, minor)


def test_the_package_has_the_version():
    assert __version__ == VERSION


def test_an_older_python_is_told_which_one_it_must_be_and_not_what_the_build_needs():
    """pip installs what a build needs before it looks which Python the package needs."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    oldest = project["project"]["requires-python"].removeprefix(">=")
    for each in map(Requirement, project["build-system"]["requires"]):
        if each.name != "setuptools":
            assert each.marker is not None, each.name
            assert [each.marker.evaluate({"python_version": one}) for one in ("3.10", oldest)] == [False, True]
