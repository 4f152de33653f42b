"""The listings of the README run as they stand there."""

import re
import subprocess
import sys

from harness.servers import ROOT, environment_of, imported

LISTINGS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


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
