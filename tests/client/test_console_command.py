"""The command `beanstalk console`: where it listens, and what it refuses."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from beanstalk_client import Client
from beanstalk_client.cli.console import _with_token, read_listen
from beanstalk_client.cli.main import main
from beanstalk_client.cli.output import OperatorError

from harness.servers import INTERPRETED, ROOT, environment_of

BEANSTALK = "import sys; from beanstalk_client.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("0.0.0.0", ("0.0.0.0", 11380)),
        ("[::1]:8", ("::1", 8)),
        (":8", ("127.0.0.1", 8)),
    ],
)
def test_the_address_of_the_page(text, address):
    assert read_listen(text) == address


@pytest.mark.parametrize("text", ["a:b", "a:65536", "a:-1"])
def test_bad_addresses_of_the_page(text):
    with pytest.raises(OperatorError, match="--listen"):
        read_listen(text)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--listen", "0.0.0.0:0"], "not a loopback address: give --login or --behind-proxy HEADER"),
        (["--listen", "queue.example.com:0", "--read-only"], "not a loopback address"),
        (["--listen-key", "x"], "--listen-key requires --listen-cert"),
        (["http://x"], "must begin with beanstalk://"),
        (["beanstalk://:token@192.0.2.1:1"], "refused to send the token without TLS"),
    ],
)
def test_what_is_refused(arguments, told, capsys):
    assert main(["console", *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["beanstalk://:secret@192.0.2.1:1"], "--token-file, BEANSTALK_TOKEN or BEANSTALK_SERVER"),
        (["--server", "beanstalk://:secret@192.0.2.1:1"], "--token-file, BEANSTALK_TOKEN or BEANSTALK_SERVER"),
        (["--metrics", "http://:secret@127.0.0.1:1", "--listen", "0.0.0.0"], "BEANSTALK_METRICS_TOKEN"),
    ],
)
def test_a_token_in_the_arguments_causes_a_warning(arguments, instead, capsys):
    assert main(["console", *arguments]) == 2
    warning = "warning: other users of this machine can read the token on the command line: use"
    assert capsys.readouterr().err.startswith(f"beanstalk console: {warning} {instead}\n")


def test_the_token_of_metrics_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("BEANSTALK_METRICS_TOKEN", "a/b")
    assert _with_token("http://127.0.0.1:9113") == "http://:a%2Fb@127.0.0.1:9113"
    assert _with_token("http://:own@127.0.0.1:9113") == "http://:own@127.0.0.1:9113"
    monkeypatch.delenv("BEANSTALK_METRICS_TOKEN")
    assert _with_token("http://127.0.0.1:9113") == "http://127.0.0.1:9113"


@pytest.mark.sockets
def test_it_serves_as_its_page_says_until_it_is_told_to_end(run):
    server = run()
    page = (ROOT / "docs" / "console.md").read_text()
    command = re.search(r"```sh\nbeanstalk (console .*)\n```", page)[1]
    words = command.replace("127.0.0.1:11300", "{}:{}".format(*server.address)).split()
    line = [sys.executable, "-c", BEANSTALK, *words, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(line, env=environment_of(INTERPRETED), stdout=subprocess.PIPE, text=True) as process:
        url = re.search(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(f"{url}tubes", timeout=10) as answer:
            assert answer.status == 200 and "server" not in {name.lower() for name in answer.headers}
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
    with Client(server.address) as queue:
        assert queue.stats()["current-connections"] == 1
