"""The listings of the README run as they stand there."""

import re
import subprocess
import sys
import tomllib

from harness.servers import ROOT, environment_of, imported

README = (ROOT / "README.md").read_text()
LISTINGS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_listings_print_what_they_say(launch, tmp_path):
    server = launch("-p", "0")
    host, port = server.address

    def run(name, text):
        (tmp_path / name).write_text(text.replace("127.0.0.1:11300", f"{host}:{port}"))
        done = subprocess.run(
            [sys.executable, name],
            cwd=tmp_path,
            env=environment_of(imported()) | {"PYTHONPATH": str(ROOT / "client")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, shop, order = LISTINGS
    assert run("first.py", first) == "send the welcome mail\n"
    assert run("shop.py", shop) == ""
    assert run("order.py", order) == "True\n"


def test_all_extras_are_named():
    found = re.search(r"Its extras are (.*?)\. Those of the server are (.*?)\.\n", README, re.DOTALL).groups()
    for named, place in zip(found, ("client", "."), strict=True):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        assert re.findall(r"`(\w+)`", named) == sorted(project["optional-dependencies"])
