"""Reads systemd's units as systemd does, as far as the project's own need it."""

import re
import shlex
from pathlib import Path

from harness.servers import ROOT

SYSTEMD = ROOT / "packaging" / "systemd"
SERVICE = SYSTEMD / "beanstalk-server.service"
SOCKET = SYSTEMD / "beanstalk-server.socket"


def settings(path):
    """The settings of a unit: the section and the name of each, with its values in their order."""
    found, section = {}, ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            found.setdefault((section, name), []).append(value)
    return found


def environment(unit, files):
    """The variables that a service gets, where its environment files are these texts or do not exist."""
    found = dict(word.split("=", 1) for line in unit["Service", "Environment"] for word in shlex.split(line))
    for path in unit["Service", "EnvironmentFile"]:
        assert path.startswith("-"), f"{path} must exist"
        for line in files.get(path[1:], "").splitlines():
            if line.strip() and line.lstrip()[0] not in "#;":
                name, _, value = line.partition("=")
                found[name.strip()] = " ".join(shlex.split(value))
    return found


def words(line, variables):
    """The words of a command line, as systemd.service(5) has it: `${…}` is in a word, `$…` is any number of words."""
    found = []
    for word in line.split():
        if re.fullmatch(r"\$\w+", word):
            found += variables.get(word[1:], "").split()
        else:
            found.append(re.sub(r"\$\{(\w+)\}", lambda name: variables.get(name[1], ""), word))
    return found


def command_line(files):
    """What the service runs, where its environment files are these texts, and the variables that it runs it with."""
    unit = settings(SERVICE)
    variables = environment(unit, files)
    (line,) = unit["Service", "ExecStart"]
    return words(line, variables), variables


def installed(directory, program):
    """Copies of the units, in a directory, with another program in the place of `beanstalk-server`."""
    text = SERVICE.read_text()
    assert text.count("\nExecStart=beanstalk-server ") == 1
    copy = Path(directory) / SERVICE.name
    copy.write_text(text.replace("\nExecStart=beanstalk-server ", f"\nExecStart={program} "))
    socket = Path(directory) / SOCKET.name
    socket.write_text(SOCKET.read_text())
    return copy, socket
