"""The messages of docs/troubleshooting.md are those of the programs, and its commands can be given."""

import ast
import re
import shlex

import pytest
from beanstalk_client.cli.parser import make_parser

from beanstalk_server.settings.options import OPTIONS
from harness.servers import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()

OF_OTHERS = {
    "Address already in use",
    "Connection refused",
    "The handshake operation timed out",
    "certificate verify failed",
}
"""Messages of the system, of Python and of OpenSSL."""


def spans(text):
    return re.findall(r"`([^`]+)`", text)


def messages():
    """What the first columns of the page quote."""
    first = [cell for cell in re.findall(r"^\| (.*?) \| ", PAGE, re.MULTILINE) if cell not in ("message", "---")]
    return sorted({span for cell in first for span in spans(cell) if not span.startswith(("--", "-", "/"))})


@pytest.fixture(scope="module")
def said():
    """All that the programs can say: the string constants of their sources, with … for what is put into them."""
    texts = []
    for house in ("beanstalk_server", "client/beanstalk_client"):
        for path in (ROOT / house).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
                    texts.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                    text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                    texts.append(re.sub(r"%\(\w+\)[a-z]|%b|%[sd]", "…", text))
    return "\n".join(texts)


@pytest.mark.parametrize("message", messages())
def test_each_message_is_said(message, said):
    for part in (part.strip(" :") for part in re.split(r"…|: ", message)):
        assert not part or part in said or part in OF_OTHERS or part.removesuffix(" by") in OF_OTHERS


def commands(program):
    code = spans(re.sub(r"^    (beanstalk.*?)(?:  +#.*)?$", r"`\1`", PAGE, flags=re.MULTILINE))
    return sorted({span for span in code if span.startswith(program + " ")})


@pytest.mark.parametrize("command", commands("beanstalk"))
def test_each_command_of_the_tool_can_be_given(command):
    words = shlex.split(command.replace("ID", "17").replace("…", "x"))[1:]
    assert make_parser().parse_args(words)


def test_each_option_exists(said):
    known = {flag for option in OPTIONS for flag in option.flags} | set(re.findall(r"^--[a-z-]+\b", said, re.MULTILINE))
    named = {re.match("--[a-z-]+", span)[0] for span in spans(PAGE) if span.startswith("--")}
    assert named and named <= known
