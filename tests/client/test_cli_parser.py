"""The command line of `beanstalk`: what is read, and the help, completion, manual page and document made from it."""

import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import programs
import pytest
from beanstalk_client.cli.completion import script
from beanstalk_client.cli.manual import ENVIRONMENT, page
from beanstalk_client.cli.parser import COMMANDS, COMMON, SORTS, WATCHABLE, make_parser, parse
from on_terminal import OnTerminal

from harness.waiting import eventually

DOCUMENT = Path(__file__).parents[2] / "docs" / "beanstalk.md"
NAMES = [command.name for command in COMMANDS]


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_every_command_is_where_the_table_says(command):
    module = importlib.import_module(f"beanstalk_client.cli.{command.module}")
    assert callable(getattr(module, command.function))


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_every_command_has_a_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        parse([command.name, "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert out.startswith(f"usage: beanstalk [OPTION ...] {command.synopsis}\n")
    assert all(argument.flags[0] in out for argument in command.arguments if argument.flags[0].startswith("-"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("put t --delay 10m later", {"delay": 600, "tube": "t", "body": "later"}),
        ("put --delay 1.5 t", {"delay": 1.5, "body": None}),
        ("put t -- -body", {"body": "-body"}),
        ("put t - --pri 4294967295", {"body": "-", "pri": 4294967295}),
        ("--server a:1 --json stats", {"server": "a:1", "json": True}),
        ("stats --server a:1 --json", {"server": "a:1", "json": True}),
        ("--server a:1 stats --server b:2", {"server": "b:2"}),
        ("kick --job 3", {"job": 3, "tube": None}),
        ("kick t 3", {"tube": "t", "count": 3, "job": None}),
        ("delete 1 2 --json 3", {"id": [1, 2, 3], "json": True}),
        ("work -n 3 t --json -- sh -c -- x", {"number": 3, "json": True, "command": ["sh", "-c", "--", "x"]}),
        ("watch -n 2 tubes --sort ready", {"interval": 2, "command": ["tubes", "--sort", "ready"]}),
        ("pause t 250ms", {"seconds": 0.25}),
        ("pause t", {"seconds": 2**32 - 1}),
        ("reprioritize 0 t k", {"pri": 0, "tube": "t", "key": "k", "job": None}),
        ("put t --at 1.5", {"at": 1.5}),
        ("put t --at 2027-01-05T08:00+01:00", {"at": 1799132400}),
    ],
)
def test_what_is_read(line, found):
    options = vars(parse(line.split()))
    assert {name: options[name] for name in found} == found


def typed_in(page):
    """What a page has its readers type, without what a shell makes of it, and without forms such as `bury ID`."""
    text = page.read_text().split("<!-- commands -->")[0]
    text = re.sub(r"(?ms)^```(\w*)\n(.*?)^```$", lambda block: block[2] if block[1] == "sh" else "", text)
    for line in re.findall(r"(?:^(?:    )?(?:\$ )?|`)beanstalk ((?!-server)[^`\n]+)", text, re.MULTILINE):
        words = shlex.split(re.split(r" [|>] ", line)[0])
        screen = "  " in line
        if not (screen or any(word.isupper() for word in words)):
            yield words


def test_what_the_documents_type_can_be_read():
    root = DOCUMENT.parents[1]
    found = [words for page in (root / "README.md", *sorted(root.glob("docs/*.md"))) for words in typed_in(page)]
    assert len(found) > 30
    for words in found:
        if words[1:]:
            parse(words)
        else:
            assert words[0] in NAMES


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing",
        "put",
        "put -t",
        "put t a b",
        "put t --delay 1x",
        "put t --delay -1",
        "put t --delay 4294967296",
        "put t --pri 4294967296",
        "put t --tries 0",
        "put t --ttl 0",
        "put t --at tomorrow",
        "put t --at 1e3",
        f"put {'x' * 201}",
        "peek 0",
        "tubes ö",
        "peek x",
        "kick t 0",
        "delete",
        "ls t other",
        "move t reserved u 1",
        "work t",
        "work t --",
        "work -- true",
        "completion tcsh",
        "stats --serv a:1",
    ],
)
def test_what_is_refused(line, capsys):
    with pytest.raises(SystemExit) as end:
        parse(line.split())
    assert end.value.code == 2
    assert "beanstalk" in capsys.readouterr().err


def test_a_pause_of_no_time_names_what_ends_one(capsys):
    with pytest.raises(SystemExit):
        parse(["pause", "t", "0"])
    assert "`beanstalk resume` ends a pause" in capsys.readouterr().err


def test_tables_of_the_parser_agree_with_the_commands():
    from beanstalk_client.cli.inspect import TUBE_COLUMNS

    assert list(TUBE_COLUMNS.values()) == list(SORTS)
    assert set(WATCHABLE) < set(NAMES)


@pytest.mark.sockets
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_can_be_read_by_it(shell):
    text = script(shell)
    assert all(name in text for name in NAMES)
    subprocess.run([programs.find(shell), "-n"], input=text, text=True, check=True, timeout=20)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["pe"], ["peek"]),
        (["ls", "--li"], ["--limit"]),
        (["stats", "ma"], ["mails", "maps"]),
        (["move", "mails", "b"], ["buried"]),
    ],
)
def test_bash_completes_commands_options_and_tubes(words, offers, tmp_path):
    (tmp_path / "beanstalk").write_text("#!/bin/sh\n[ \"$1\" = tubes ] && printf 'mails\\nmaps\\nother\\n'\n")
    (tmp_path / "beanstalk").chmod(0o755)
    line = " ".join(["beanstalk", *words])
    ask = f'PATH="{tmp_path}:$PATH"; COMP_WORDS=({line}); COMP_CWORD={len(words)}\n'
    ask += "$(complete -p beanstalk | sed 's/.*-F \\([^ ]*\\).*/\\1/') beanstalk " + words[-1]
    done = subprocess.run(
        ["bash", "--norc"],
        input=script("bash") + "\n" + ask + '\nprintf "%s\\n" "${COMPREPLY[@]}"\n',
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert sorted(word.strip() for word in done.stdout.split()) == offers, done.stderr


SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], ". ./beanstalk.bash\n"),
    "zsh": (["-f", "-i"], "fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D\n"),
    "fish": (["-i"], ""),
}
"""How each is started without a person's settings, and how it gets the script where docs/beanstalk.md puts it."""
SCRIPTS = {"bash": "beanstalk.bash", "zsh": "_beanstalk", "fish": "fish/completions/beanstalk.fish"}


@pytest.mark.sockets
@pytest.mark.parametrize("typed", ["", "mail-", r"mail-\$\(touch"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tube_is_completed_by_its_name_which_no_shell_evaluates(shell, typed, tmp_path):
    name = f"mail-$(touch$IFS{tmp_path}/ran);(touch$IFS{tmp_path}/ran)"
    (tmp_path / "names").write_text(name + "\n")
    (tmp_path / "beanstalk").write_text(
        f'#!/bin/sh\ncd {tmp_path}\nif [ "$1" = tubes ]; then cat names; touch asked\n'
        'else printf "%s\\n" "$@" >given; mv given arguments; fi\n'
    )
    (tmp_path / "beanstalk").chmod(0o755)
    (tmp_path / SCRIPTS[shell]).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / SCRIPTS[shell]).write_text(script(shell))
    (tmp_path / "fish/generated_completions").mkdir(parents=True)  # or fish reads all manual pages, for minutes
    options, prepare = SHELLS[shell]
    here = str(tmp_path)
    environment = {"PATH": f"{here}:{os.environ['PATH']}", "HOME": here, "XDG_CONFIG_HOME": here, "XDG_DATA_HOME": here}
    become = "os.execv(sys.argv[1], sys.argv[1:])"
    terminal = OnTerminal(programs.find(shell), *options, program=become, size=(200, 24), environment=environment)
    try:
        terminal.type(f"cd {here}\n{prepare}echo read'y'\n")
        terminal.shows("ready")
        terminal.type(f"beanstalk ls {typed}\t")
        eventually((tmp_path / "asked").exists, "the shell to ask for names")
        terminal.shows("ran")
        terminal.type("\n")
        eventually((tmp_path / "arguments").exists, "the command to be run")
        assert (tmp_path / "arguments").read_text().splitlines() == ["ls", name]
        assert not (tmp_path / "ran").exists()
    finally:
        terminal.close()


@pytest.mark.sockets
def test_the_manual_page_is_good_troff_and_has_everything():
    done = subprocess.run(
        [programs.find("groff"), "-man", "-Tutf8", "-ww", "-rLL=100n"],
        input=page(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stderr == ""
    shown = re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout).replace("\N{HYPHEN}", "-").replace("\N{MINUS SIGN}", "-")
    words = re.sub(r"-\n\s+", "-", shown)
    for name in NAMES + [argument.flags[0] for argument in COMMON] + [name for name, _ in ENVIRONMENT]:
        assert name in words, name


def reference():
    """The commands and their options, as the document must have them."""
    lines = ["<!-- commands -->", ""]
    for command in COMMANDS:
        lines += [f"### {command.name}", "", f"    beanstalk {command.synopsis}", "", escaped(command.description), ""]
        if command.arguments:
            lines += [*table(command.arguments), ""]
    lines += ["### Options of every command", "", *table(COMMON), "", "<!-- end of commands -->"]
    return "\n".join(lines)


def table(arguments):
    rows = ["| argument | what it is |", "|---|---|"]
    for argument in arguments:
        flags = argument.flags if argument.flags[0].startswith("-") else [""]
        typed = ", ".join(f"{flag} {argument.value}".strip() for flag in flags)
        rows.append(f"| `{typed}` | {escaped(argument.help)} |")
    return rows


def escaped(text):
    return text.replace("|", r"\|").replace("{}", "`{}`")


def test_the_document_has_every_command():
    assert reference() in DOCUMENT.read_text(), f"docs/beanstalk.md must have:\n\n{reference()}\n"


def test_every_option_is_completed_by_what_it_is():
    parser = make_parser()
    marks = {getattr(action, "complete", "") for action in parser._actions}
    assert marks <= {"", "files", "tubes"}
