"""The listings of the pages: a test reads each, the programs accept each command, and each config file is good."""

import argparse
import contextlib
import importlib.util
import re
import shlex
import sys
import tomllib

import pytest
from beanstalk_client import signals
from test_documents import PAGES, ROOT, name

from beanstalk_server.cli import command_line

PROJECTS = {".": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]}
PROJECTS["./client"] = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]
SCRIPTS = {script: target for each in PROJECTS.values() for script, target in each["scripts"].items()}


of_each_page = pytest.mark.parametrize("page", PAGES, ids=name)


class Accepted(BaseException):
    """Raised instead of what a command would do."""


def lines_of_commands(text):
    """The lines of a page that a reader types into a shell, without those that are generated from the parsers."""
    text = re.sub(r"<!-- (.+?) -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    language = None
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language == "sh" or (language is None and line.startswith("    ")):
            yield line.strip().removeprefix("$ ")


def words_of(line):
    """The words of the first command of a line."""
    words = shlex.split(line.replace("SHARD", "0"), comments=True)
    return words[: next((number for number, word in enumerate(words) if re.match(r"[|&>;]", word)), None)]


def commands(text):
    """The commands of a page that one of our programs reads, each as a list of words."""
    for line in lines_of_commands(text):
        if bench := re.match(r'make bench ARGS="(.*)"', line):
            yield ["python", "-m", "bench", *words_of(bench[1])]
        elif re.match(r"(\.venv/bin/)?python3? -m (beanstalk_|bench|conformance|harness|tests)", line):
            yield ["python", *words_of(line)[1:]]
        elif line.split(" ")[0] in SCRIPTS:
            yield words_of(line)


def main_of(words):
    """The function that runs a command."""
    if words[0] == "python":
        found = importlib.util.find_spec(words[2])
        return importlib.import_module(f"{words[2]}.__main__" if found.submodule_search_locations else words[2]).main
    module, _, function = SCRIPTS[words[0]].partition(":")
    return getattr(importlib.import_module(module), function)


@pytest.fixture
def accept(monkeypatch):
    """A function that gives a command to its program, and ends it when it has read the command."""

    def parse(parser, arguments=None, namespace=None, read=argparse.ArgumentParser.parse_args):
        read(parser, arguments, namespace)
        raise Accepted

    def put_together(path, values, sources, mistakes, *_, **__):
        assert mistakes == []
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.setattr(command_line, "put_together", put_together)
    monkeypatch.setattr(signals, "exiting", lambda _: contextlib.nullcontext())  # or its deadline ends the tests

    def call(words):
        monkeypatch.setattr(sys, "argv", words[2:] if words[0] == "python" else words)
        main_of(words)()

    return call


WITHOUT_OPTIONS = (["beanstalk-server", "token"], ["beanstalk-server", "--version"])


@of_each_page
def test_the_programs_accept_the_commands_of_a_page(page, accept):
    for words in commands(page.read_text()):
        if words not in WITHOUT_OPTIONS:
            with pytest.raises(Accepted):
                accept(words)


@of_each_page
def test_the_extras_that_a_page_installs_exist(page):
    for place, extras in re.findall(r"'(\./client|\.)\[([\w,]+)\]'", page.read_text()):
        assert set(extras.split(",")) <= set(PROJECTS[place]["optional-dependencies"])


TESTS = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_listings.py"]


def sections_of(text):
    """The sections of a page that have listings, each with a language of these."""
    section, language = "", None
    for line in text.splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
            if language:
                yield section, language
        elif language is None and line.startswith("#"):
            section = line.strip("# ")


@of_each_page
def test_a_test_reads_each_listing_of_a_page(page):
    """A test that names the page also names the section, or reads all listings of the language or of the page."""
    named = (f'"{page.name}"', f'/{page.name}"', f'page_of("{page.stem}")')
    readers = [text for text in TESTS if any(each in text for each in named)]
    whole = f'PAGE = ROOT / "docs" / "{page.name}"\n\nSECTIONS = '
    left = {
        each
        for each in sections_of(page.read_text())
        if not any(
            text in reader for reader in readers for text in (f'"{each[0]}"', f"```{each[1]}", "```{language}", whole)
        )
    }
    assert left - {(section, "text") for section, _ in left} == set()
