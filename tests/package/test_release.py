"""`make release`: what it refuses before it builds anything, and what it does afterwards, without a build."""

import re
import subprocess
import tomllib

import pytest

from harness import release, wheels
from harness.release import faults, sum_up, version_of
from harness.servers import ROOT

DYNAMIC = (
    '[project]\nname = "{0}"\ndynamic = ["version"]\n[tool.setuptools.dynamic]\nversion = {{ attr = "{1}.VERSION" }}\n'
)


@pytest.fixture
def clone(tmp_path):
    """A clone of a repository with two distributions, ready to be released as 1.2.0."""
    for path, text in {
        "pyproject.toml": DYNAMIC.format("server", "server.version"),
        "server/version.py": 'VERSION = "1.2.0"\n',
        "client/pyproject.toml": '[project]\nname = "client"\nversion = "1.2.0"\n',
        "CHANGELOG.md": "# Changelog\n\n## 1.3.0, unreleased\n\n## 1.2.0, 2027-01-04\n\n## 1.1.0, 2026-12-40\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / ".gitignore").write_text("dist/\n")
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for line in (["init", "--quiet"], ["add", "."], [*name, "commit", "--quiet", "--message", "Release 1.2.0"]):
        subprocess.run(["git", *line], cwd=tmp_path, check=True)
    return tmp_path


def test_what_is_ready_has_no_faults(clone):
    assert [version_of(project) for project in (clone, clone / "client")] == ["1.2.0", "1.2.0"]
    assert faults("1.2.0", [clone, clone / "client"]) == []


def test_the_version_is_found_where_the_directory_of_a_package_has_another_name(tmp_path):
    text = DYNAMIC.format("suite", "suite.version") + '[tool.setuptools.package-dir]\nsuite = "."\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "version.py").write_text('VERSION = "1.2.0"\n')
    assert version_of(tmp_path) == "1.2.0"


def test_each_distribution_must_have_the_version(clone):
    (clone / "client/pyproject.toml").write_text('[project]\nname = "client"\nversion = "1.1.0"\n')
    assert faults("1.2.0", [clone, clone / "client"]) == [
        "client/pyproject.toml has version 1.1.0, not 1.2.0",
        "the worktree is not clean: commit or remove client/pyproject.toml",
    ]


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ("1.3.0", "CHANGELOG.md: section 1.3.0 has 'unreleased' instead of a date such as 2027-01-04"),
        ("1.1.0", "CHANGELOG.md: section 1.1.0 has '2026-12-40' instead of a date such as 2027-01-04"),
        ("1.2", "CHANGELOG.md has no section 1.2: begin one with '## 1.2, 2027-01-04'"),
    ],
)
def test_the_changelog_must_have_a_dated_section(clone, version, fault):
    assert fault in faults(version, [clone])


def test_nothing_may_be_left_uncommitted(clone):
    (clone / "left.txt").write_text("left")
    (clone / "server/version.py").write_text('VERSION = "1.2.0"  # changed\n')
    assert faults("1.2.0", [clone]) == ["the worktree is not clean: commit or remove server/version.py, left.txt"]


def test_a_fault_ends_it_before_it_builds(monkeypatch, clone, capsys):
    monkeypatch.setattr(release, "PROJECTS", [clone])
    monkeypatch.setattr(wheels, "make", lambda _: pytest.fail("builds"))
    assert release.main(["1.1"]) == 1
    assert capsys.readouterr().err == (
        "error: pyproject.toml has version 1.2.0, not 1.1\n"
        "error: CHANGELOG.md has no section 1.1: begin one with '## 1.1, 2027-01-04'\n"
    )


def test_without_a_version_it_says_how_to_give_one(capsys):
    assert release.main([""]) == 2
    assert capsys.readouterr().err == "usage: make release VERSION=1.2.3\n"


def test_it_builds_lists_components_tests_upgrades_and_publishes_nothing(monkeypatch, clone, capsys):
    ran, installed_from = [], []

    def make(to):
        to.mkdir()
        for name in ("beanstalk_server-1.2.0-py3-none-any.whl", "beanstalk_server-1.2.0.tar.gz"):
            (to / name).write_text(name)

    def run(*line, **_):
        ran.append(" ".join(str(word) for word in line))
        if "install" in line:
            python = line[line.index("--python") + 1]
            installed_from.append(python.parents[1] / "lib/python3/site-packages/x.dist-info/direct_url.json")
            installed_from[0].parent.mkdir(parents=True)
            installed_from[0].write_text('{"url": "file:///home"}')
        if line[0] == "cyclonedx-py":
            assert not installed_from[0].exists()  # an SBOM names no path of the machine
            (clone / "dist/beanstalk_server-1.2.0.cdx.json").write_text("{}")

    monkeypatch.setattr(release, "PROJECTS", [clone])
    monkeypatch.setattr(wheels, "make", make)
    monkeypatch.setattr(wheels, "run", run)
    assert release.main(["1.2.0"]) == 0
    assert [line.split()[0] for line in ran] == ["python", "python", "cyclonedx-py", "pytest"]
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=clone / "dist",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "beanstalk_server-1.2.0-py3-none-any.whl: OK\n"
        "beanstalk_server-1.2.0.cdx.json: OK\n"
        "beanstalk_server-1.2.0.tar.gz: OK\n"
    )
    assert "Nothing has been published" in capsys.readouterr().out


def test_sums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "a").write_text("abc")
    sum_up(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text() == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n"
    )


def test_the_support_policy_names_the_pythons_that_packages_are_built_for():
    server, client = (tomllib.loads((place / "pyproject.toml").read_text()) for place in (ROOT, ROOT / "client"))
    page = (ROOT / "docs/releases.md").read_text()
    named = {
        name: re.findall(r"3\.\d+", versions)
        for name, versions in re.findall(r"^\| Python for the (\w+) \| (.*) \|$", page, re.MULTILINE)
    }
    assert named["server"] == [f"3.{tag[3:].removesuffix('-*')}" for tag in server["tool"]["cibuildwheel"]["build"]]
    assert f">={named['server'][0]}" == server["project"]["requires-python"]
    assert f">={named['client'][0]}" == client["project"]["requires-python"]


def test_the_distributions_of_this_repository_have_one_version():
    assert len({version_of(project) for project in release.PROJECTS}) == 1
