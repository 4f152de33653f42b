"""Prints what pyproject.toml requires for some purposes, for `pip install --requirement`.

`python -m harness.requirements build run dev`: `build` is what the build needs, `run` what the package needs, any other
name an extra of the server or of the client, or a dependency group. Packages of this repository are left out: they are
built, and on no index.
"""

import sys
import tomllib
from collections.abc import Sequence

from harness.servers import ROOT


def requirements(names: Sequence[str]) -> list[str]:
    """Return the requirements of these names; raise KeyError for one that is in no pyproject.toml."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = read["project"]
    groups = {"build": read["build-system"]["requires"], "run": project["dependencies"]}
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    groups |= read["dependency-groups"] | project["optional-dependencies"] | client["optional-dependencies"]
    found = [requirement for name in names for requirement in groups[name]]
    return [requirement for requirement in found if not requirement.startswith("beanstalk-")]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(sys.argv[1:])) + "\n")
