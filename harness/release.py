"""Prepares a release in dist/, and publishes nothing: checks, packages, SBOMs, checksums and the tests of upgrades.

`make release VERSION=1.2.3` refuses a version that a distribution or the changelog does not have, and a worktree that
is not clean. It then builds and tries all packages (harness/wheels.py). The SBOM of a package (CycloneDX) lists what
its installation brings, without extras.
"""

import datetime
import hashlib
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from harness import wheels
from harness.wheels import PROJECTS

NEXT = """
Nothing has been published. To publish {0}:
    git tag --sign v{0} --message "beanstalk-server {0}"
    git push origin v{0}
The tag starts .github/workflows/release.yml, which builds the packages again, for all platforms, and uploads them.
"""


def version_of(project: Path) -> str:
    """Return the version of the distribution in this directory: a string, or the constant that `attr` names."""
    read = tomllib.loads((project / "pyproject.toml").read_text())
    if "version" in read["project"]:
        return str(read["project"]["version"])
    setuptools = read["tool"]["setuptools"]
    package, *module, name = setuptools["dynamic"]["version"]["attr"].split(".")
    path = project.joinpath(setuptools.get("package-dir", {}).get(package, package), *module).with_suffix(".py")
    return str(runpy.run_path(str(path))[name])


def faults(version: str, projects: Sequence[Path]) -> list[str]:
    """Return what must be changed before this version can be released from the worktree of the first project."""
    root = projects[0]
    found = [
        f"{(project / 'pyproject.toml').relative_to(root)} has version {version_of(project)}, not {version}"
        for project in projects
        if version_of(project) != version
    ]
    section = re.search(rf"^## \[?{re.escape(version)}\]?, (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if section is None:
        found.append(f"CHANGELOG.md has no section {version}: begin one with '## {version}, 2027-01-04'")
    elif not is_date(section[1]):
        found.append(f"CHANGELOG.md: section {version} has '{section[1]}' instead of a date such as 2027-01-04")
    line = ["git", "-C", str(root), "status", "--porcelain"]
    status = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    if status:
        paths = ", ".join([each[3:] for each in status[:5]] + ["…"] * (len(status) > 5))
        found.append(f"the worktree is not clean: commit or remove {paths}")
    return found


def is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def list_components(to: Path) -> None:
    """Write the SBOM of each package beside its pure wheel."""
    for wheel in sorted(to.glob("*-none-any.whl")):
        with tempfile.TemporaryDirectory() as place:
            python = Path(place) / "bin" / "python"
            wheels.run("python", "-m", "venv", "--without-pip", place)
            wheels.run("python", "-m", "pip", "--quiet", "--python", python, "install", wheel)
            for origin in Path(place).glob("lib/*/site-packages/*/direct_url.json"):
                origin.unlink()  # a path of this machine, which the SBOM would show
            name = wheel.name.removesuffix("-py3-none-any.whl")
            wheels.run("cyclonedx-py", "environment", python, "--output-file", to / f"{name}.cdx.json")


def sum_up(to: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(to.iterdir())]
    (to / "SHA256SUMS").write_text("".join(lines))


def main(arguments: Sequence[str]) -> int:
    """Prepare the release of the version that is given; return the exit status."""
    (version,) = arguments or [""]
    if not version:
        sys.stderr.write("usage: make release VERSION=1.2.3\n")
        return 2
    found = faults(version, PROJECTS)
    if found:
        sys.stderr.write("".join(f"error: {fault}\n" for fault in found))
        return 1
    to = PROJECTS[0] / "dist"
    wheels.make(to)
    print("listing the components of each package", flush=True)
    list_components(to)
    sum_up(to)
    print("testing upgrades", flush=True)
    wheels.run("pytest", "-q", "tests/upgrades")
    wheels.show(to)
    print(NEXT.format(version), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
