"""The images: what a parser and a linter see in their recipes, and what the server's makes without an engine."""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest
from dockerfile_parse import DockerfileParser
from lint import passes
from options import options_of

from beanstalk_server.version import VERSION
from harness.servers import OURS, ROOT, Process, command, imported, unused_port

CONTAINERFILE = ROOT / "packaging" / "container" / "Containerfile"
OF_CLIENT = CONTAINERFILE.with_name("client.Containerfile")

both = pytest.mark.parametrize("stages", [CONTAINERFILE, OF_CLIENT], ids=lambda path: path.name, indirect=True)


@pytest.fixture
def stages(request):
    """The instructions of each stage of a recipe, the server's by default; each with its name and its value."""
    path = getattr(request, "param", CONTAINERFILE)
    parsed = DockerfileParser(fileobj=io.BytesIO(path.read_bytes())).structure
    stages = []
    for each in parsed:
        if each["instruction"] == "FROM":
            stages.append([])
        if each["instruction"] != "COMMENT":
            stages[-1].append((each["instruction"], each["value"]))
    return stages


def of(stage, instruction):
    """The values of an instruction in a stage."""
    return [value for name, value in stage if name == instruction]


@pytest.mark.parametrize("page", [CONTAINERFILE, ROOT / "docs" / "deploy.md"], ids=lambda page: page.name)
def test_podman_is_told_to_keep_the_health_check(page):
    """Its default, the format of OCI, has none: it leaves it out, with a warning."""
    (built,) = re.findall(r"podman build (.*)", page.read_text())
    assert "--format docker" in built


@both
def test_it_is_run_by_a_user_who_is_not_root_and_is_known_by_its_number(stages):
    (user,) = of(stages[-1], "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    names = [name for name, _ in stages[-1]]
    assert "RUN" not in names[names.index("USER") :]


def test_its_jobs_are_on_a_volume_which_is_all_that_it_writes_to(stages):
    (volume,) = of(stages[-1], "VOLUME")
    (command,) = of(stages[-1], "CMD")
    assert options_of(json.loads(command))["--binlog"] == volume
    (made,) = [words for words in map(shlex.split, of(stages[-1], "RUN")[0].split("&&")) if words[0] == "install"]
    assert made[-1] == volume
    assert "PYTHONDONTWRITEBYTECODE=1" in of(stages[-1], "ENV")[0]


def test_what_it_listens_on_is_exposed(stages):
    found = options_of(json.loads(of(stages[-1], "CMD")[0]))
    assert of(stages[-1], "EXPOSE") == [f"11300 {found['--http'].rpartition(':')[2]}"]
    assert found["--listen"] == "0.0.0.0"


@both
def test_what_it_needs_of_the_package_is_there(stages):
    project = project_of(stages)
    (extras,) = re.findall(r"/src\[([\w,]+)\]", of(stages[0], "RUN")[-1])
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    for copied in of(stages[0], "COPY"):
        for name in copied.split()[:-1]:
            assert (ROOT / name).exists()
    for program in of(stages[-1], "ENTRYPOINT"):
        assert json.loads(program) == ["beanstalk-server"]
        assert "beanstalk-server" in project["scripts"]


def test_the_line_of_the_readme_builds_it_and_publishes_its_port_on_this_machine_only(stages):
    (line,) = re.findall(r"^docker run .*", (ROOT / "README.md").read_text(), re.MULTILINE)
    published, recipe = re.fullmatch(r'docker run -p (\S+) "\$\(docker build -q -f (\S+) \.\)"', line).groups()
    assert ROOT / recipe == CONTAINERFILE
    port = of(stages[-1], "EXPOSE")[0].split()[0]
    assert published == f"127.0.0.1:{port}:{port}"


@both
def test_nothing_of_the_build_is_in_it(stages):
    title = labels(stages)["title"]
    assert of(stages[-1], "COPY") == [f"--from=build /opt/{title} /opt/{title}"]
    assert of(stages[0], "FROM")[0].removesuffix(" AS build") == of(stages[-1], "FROM")[0]
    assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", of(stages[-1], "FROM")[0])


def labels(stages):
    """The labels that OCI defines, without their prefix."""
    words = [word for value in of(stages[-1], "LABEL") for word in shlex.split(value)]
    found = dict(word.split("=", 1) for word in words)
    prefix = "org.opencontainers.image."
    assert all(name.startswith(prefix) for name in found)
    return {name.removeprefix(prefix): value for name, value in found.items()}


def project_of(stages):
    """What the package in an image says of itself."""
    directory = ROOT / ("" if labels(stages)["title"] == "beanstalk-server" else "client")
    return tomllib.loads((directory / "pyproject.toml").read_text())["project"]


@both
def test_its_labels_say_what_it_is_and_from_what(stages):
    found = labels(stages)
    assert project_of(stages)["name"] == found["title"]
    assert found["version"] == VERSION
    assert found["licenses"] == "MIT"
    assert found["base.name"] == of(stages[-1], "FROM")[0]
    assert found["source"] in (ROOT / "client" / "README.md").read_text()
    assert (ROOT / found["documentation"].partition("/main/")[2]).exists()
    assert 'REVISION=""' in of(stages[-1], "ARG")


def health_check(stages):
    """The command that looks whether it is well."""
    (value,) = of(stages[-1], "HEALTHCHECK")
    return json.loads(value.partition("CMD ")[2])


def test_the_page_gives_an_image_in_the_format_of_oci_the_same_check(stages):
    text = (ROOT / "docs" / "deploy.md").read_text().split("```\npodman run --health-")[1].split("```")[0]
    words = shlex.split(f"--health-{text}".replace("…", "").replace("\\\n", ""))
    found = dict(zip(words[::2], words[1::2], strict=True))
    assert shlex.split(found.pop("--health-cmd")) == health_check(stages)
    (value,) = of(stages[-1], "HEALTHCHECK")
    assert found == {f"--health-{name}": each for name, each in re.findall(r"--([\w-]+)=(\w+)", value)}


def test_its_health_is_asked_for_where_it_listens(stages):
    program, option, script = health_check(stages)
    assert (program, option) == ("python", "-c")
    compile(script, "<health>", "exec")
    assert options_of(json.loads(of(stages[-1], "CMD")[0]))["--http"].endswith(re.search(r"\b\d{4}\b", script)[0])


def test_it_is_well_while_the_server_answers_and_not_afterwards(stages):
    *program, script = health_check(stages)
    listening = options_of(json.loads(of(stages[-1], "CMD")[0]))["--http"].rpartition(":")[2]
    port = str(unused_port())
    line = [sys.executable, *program[1:], script.replace(listening, port)]
    process = Process(imported(), [*command(imported()), "-p", "0", "--http", f"127.0.0.1:{port}"])
    try:
        assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    finally:
        process.kill()
    assert subprocess.run(line, capture_output=True, check=False).returncode != 0


@pytest.mark.slow
def test_a_linter_finds_nothing(tools):
    assert passes(tools / "hadolint", "--no-color", CONTAINERFILE, OF_CLIENT) == ""


@pytest.mark.slow
def test_its_recipe_makes_a_server_that_runs(stages, tmp_path):
    """The steps of its build, on this machine, and its command; without a compiler, which would take minutes."""
    source, target = tmp_path / "src", tmp_path / "opt"
    for copied in of(stages[0], "COPY"):
        *names, to = copied.split()
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                source.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source / to)
    line = of(stages[0], "RUN")[-1].replace("/src", str(source)).replace("/opt/beanstalk-server", str(target))
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"BEANSTALK_SERVER_PURE": "1", "PATH": path}
    subprocess.run(["sh", "-euc", line], env=environment, check=True, capture_output=True)
    assert not (target / "bin" / "pip").exists()

    options = options_of(json.loads(of(stages[-1], "CMD")[0]))
    here = {"--listen": "127.0.0.1", "--binlog": str(tmp_path / "jobs"), "--http": f"127.0.0.1:{unused_port()}"}
    assert options.keys() == here.keys()
    words = ["--port", "0", *[word for flag in options for word in (flag, here[flag])]]
    program = [str(target / "bin" / "beanstalk-server"), *words]
    process = Process(OURS, [*without_rights(tmp_path / "jobs"), *program])
    assert process.stop() == 0


def without_rights(place):
    """What runs a program without capabilities, where only this directory can be written to, as a container does; or
    nothing, where this needs what the user may not do."""
    place.mkdir()
    lines = [
        f"mount -t tmpfs -o mode=0755 tmpfs {place}",
        "mount -o remount,bind,ro /",
        "if mountpoint -q /tmp; then mount -o remount,bind,ro /tmp; fi",
        f"if touch {place.parent}/x 2>/dev/null; then exit 1; fi",
        'exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"',
    ]
    line = ["unshare", "--mount", "sh", "-euc", "\n".join(lines), "sh"]
    done = subprocess.run([*line, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    return line if done is not None and done.returncode == 0 else []
