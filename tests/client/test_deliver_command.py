"""The command line of beanstalk-deliver, and its page of the documents."""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beanstalk_client import consumers
from beanstalk_client.deliver import command, signatures
from beanstalk_client.deliver.command import UsageError, main, make_deliverer, make_parser
from beanstalk_client.deliver.request import Request
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.tasks.failure import report

from harness.servers import ROOT

PAGE = ROOT / "docs" / "deliveries.md"
BEGIN, END = "<!-- options of beanstalk-deliver -->\n", "<!-- end of options -->\n"


def refused(capsys, *arguments):
    """What is said to a command line that cannot be followed."""
    try:
        status = main(["--tube", "webhooks", *arguments])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert status == 2
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tube", "webhooks"], "beanstalk-deliver: --tube: webhooks is named twice"),
        (["--server", "beanstalk://host:port"], "beanstalk-deliver: --server: "),
        (["--server", "beanstalk://:secret@example.com"], "refused to send the token without TLS"),
        (["--token-file", "/nowhere"], "beanstalk-deliver: --token-file: /nowhere: No such file or directory"),
        (["--secrets", "/nowhere"], "beanstalk-deliver: --secrets: /nowhere: No such file or directory"),
        (["--secrets", __file__], "line 1: "),
        (["--ca", __file__], "beanstalk-deliver: --ca: "),
        (["--server-ca", "/nowhere"], "beanstalk-deliver: --server-ca: /nowhere: No such file"),
        (["--at-once", "0"], "argument --at-once: '0' must be a number, 1 or more"),
        (["--timeout", "0"], "argument --timeout: '0' must be seconds, more than 0"),
        (["--timeout", "nan"], "must be seconds"),
        (["--backoff", "x"], "must be seconds"),
        (["--tries", "-1"], "--tries"),
        (["--allow-port", "65536"], "must be a port, 1 to 65535"),
        (["--allow-net", "10.0.0.1/8"], "must be a network, such as 10.0.0.0/8"),
        (["--allow-net", "example.com"], "must be a network"),
        (["--retry-after-max", "²"], "must be seconds"),
    ],
)
def test_mistakes_are_said_in_one_line(capsys, arguments, said):
    line = refused(capsys, *arguments)
    assert said in line and "secret@" not in line


def test_there_must_be_a_tube(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "--tube" in capsys.readouterr().err


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in [name for name in sys.modules if name.startswith("beanstalk_client.deliver.s")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        UsageError,
        match=r"beanstalk-deliver needs aiohttp and aiodns: pip install './client\[deliver\]' in a clone",
    ):
        make_deliverer(make_parser().parse_args(["--tube", "a"]))


def test_producers_need_no_library_and_no_event_loop():
    program = "import sys, beanstalk_client.deliver; print('aiohttp' in sys.modules, 'asyncio' in sys.modules)"
    line = [sys.executable, "-P", "-c", program]
    done = subprocess.run(line, env={"PYTHONPATH": str(ROOT / "client")}, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_server_that_is_not_there(capsys):
    assert main(["--tube", "a", "--server", "127.0.0.1:1"]) == 1
    assert "beanstalk-deliver: the job server: " in capsys.readouterr().err


# The page


def options():
    """The table of all options, as the parser has them."""
    lines = []
    for group in make_parser()._action_groups:
        for action in group._group_actions:
            if isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
                continue
            value = "" if action.nargs == 0 else f" {action.metavar or '|'.join(action.choices)}"
            value = value.replace("|", r"\|")
            lines.append(f"| `{action.option_strings[0]}{value}` | {action.help} |\n")
    return "\n| option | |\n|---|---|\n" + "".join(lines) + "\n"


def test_the_page_has_all_options():
    """To write the table anew: PYTHONPATH=client:. python tests/client/test_deliver_command.py."""
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == options()


def test_the_page_has_all_events():
    source = "".join(path.read_text() for path in Path(command.__file__).parent.glob("*.py"))
    told = set(re.findall(r'logging\.[A-Z]+,\s*"([a-z-]+)"', source))
    ends = re.findall(r'f"{self._name}-([a-z-]+)"', Path(consumers.__file__).read_text())
    told |= {f"deliverer-{end}" for end in ends}
    assert len(ends) == 2
    assert told == set(
        re.findall(r"`([a-z]+(?:-[a-z]+)*)`", "".join(re.findall(r"^\| (`.*?) \|", events(), re.MULTILINE)))
    )


def events():
    return PAGE.read_text().partition("| event | level |")[2].partition("\n\n")[0]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_its_requests_can_be_put_and_read(run):
    from beanstalk_client import Client, NotFoundError

    first, second, _ = blocks("python")
    address = run().address
    for block in (first, second):
        exec(block.replace("127.0.0.1:11300", f"127.0.0.1:{address[1]}"), {})
    with Client(address, encoding=None, use="webhooks") as queue:
        request = Request.from_body(queue.peek(1).body)
        assert (request.host, request.body) == ("example.com", b'{"type":"order.paid","order":17}')
        with pytest.raises(NotFoundError):
            queue.peek(2)
    request = Request.from_body(blocks("json")[0].encode())
    assert json.loads(request.body) == {"order": 17}


def test_its_secrets_sign_and_its_receiver_verifies():
    (text,) = blocks("text")
    secrets = Secrets.parse(text).of("https://hooks.example.com/x", "hooks.example.com")
    names = {"body": b'{"order":17}'}
    names["headers"] = signatures.headers("msg_1", int(time.time()), names["body"], secrets)
    exec(blocks("python")[2], names)
    assert names["payload"] == {"order": 17}


def test_its_report_is_one():
    shown = json.loads(blocks("json")[1])
    fields = {name: shown[name] for name in ("kind", "host", "webhook_id", "status", "answer")}
    made = json.loads(report(17, "webhooks", shown["error"], 12, by="sender", **fields))
    assert list(made) == list(shown)
    assert {**made, "buried": 0, "sender": 0} == {**shown, "buried": 0, "sender": 0}


def test_twelve_tries_take_about_as_long_as_it_says():
    parsed = make_parser().parse_args(["--tube", "a"])
    deliverer = make_deliverer(parsed)
    waited = sum(deliverer._rules.delay(tries, None, 0.5) for tries in range(1, parsed.tries))
    assert 2.5 * 3600 < waited < 3.5 * 3600


async def test_what_is_asked_for_is_what_is_made(tmp_path):
    path = tmp_path / "secrets"
    path.write_text("* whsec_bmV3IHNlY3JldCwgbG9uZyBlbm91Z2gu\n")
    arguments = "--at-once 7 --per-host 3 --waiting 8 --timeout 2 --redirects 0 --tries 0 --backoff 1 --allow-port 443"
    line = ["--tube", "a", "--tube", "b", "--secrets", str(path), "--allow-private", *arguments.split()]
    deliverer = make_deliverer(make_parser().parse_args(line))
    assert (deliverer._slots.places, deliverer._slots.per_host, deliverer._rules.tries) == (15, 3, 0)

    sender = deliverer._make_sender()
    try:
        assert (sender._limits.timeout, sender._limits.redirects) == (2, 0)
        assert sender.secrets.of("https://a/", "a") and not sender._proxies
        sender._guard.check_host("10.0.0.1", 443)
    finally:
        await sender.close()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + options() + END + rest.partition(END)[2])
