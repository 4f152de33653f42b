"""Builds the documents as a site: the pages of the repository as they are, and some that are made from the code.

    python -m docs.site.build DIRECTORY

The pages are copied to a place of their own, so that their links to each other stay as they are. The README is the
first page, with the menu: links to it are changed in the copies. With them come a page of all options, from
`settings/options.py`, one of all commands, from `wire/commands.py` and docs/protocol-extensions.md, and the Python API
(`reference.py`). Sphinx makes HTML of them, and each of its warnings is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from beanstalk_server.access import rights
from beanstalk_server.settings import kinds, options, sections
from beanstalk_server.settings.declaration import Option
from beanstalk_server.wire import authorization
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL, Command
from docs.site import reference

ROOT = Path(__file__).parents[2]

COPIED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "bench/README.md",
    "conformance/README.md",
    "docs",
    "examples",
)
"""What links of the pages lead to, and the pages."""

CONTENTS = (
    ("Begin", ["docs/tutorial", "docs/faq"]),
    (
        "Use",
        [
            "reference/commands",
            "docs/protocol-extensions",
            "docs/policies",
            "docs/differences",
            "docs/clients",
            "docs/glossary",
        ],
    ),
    (
        "In Python",
        [
            "docs/client",
            "docs/workers",
            "docs/idempotency",
            "docs/deploying",
            "docs/schedules",
            "docs/outbox",
            "docs/deliveries",
            "docs/celery",
            "docs/integrations",
            "docs/web",
            "docs/testing",
            "docs/tracing",
            "docs/coming-from",
            "reference/client",
            "reference/tasks",
        ],
    ),
    (
        "Configure",
        ["reference/options", "docs/config", "docs/access", "docs/access-recipes", "docs/binlog", "docs/cluster"],
    ),
    (
        "Operate",
        [
            "docs/deploy",
            "docs/scaling",
            "docs/operating",
            "docs/troubleshooting",
            "docs/beanstalk",
            "docs/console",
            "docs/observability",
        ],
    ),
    (
        "Know more",
        ["docs/performance", "bench/README", "docs/tested", "docs/compatibility", "docs/design", "docs/binlog-format"],
    ),
    ("Take part", ["CONTRIBUTING", "conformance/README", "docs/releases", "CHANGELOG", "SECURITY"]),
)
"""The pages, as the menu has them; what is not named goes behind "Know more"."""

BEHIND = "Know more"

RIGHTS = {rights.PRODUCE: "produce", rights.CONSUME: "consume", rights.INSPECT: "inspect", rights.ADMIN: "admin"}

SCOPES = {
    authorization.NO_TUBE: "",
    authorization.TUBE_IN_USE: "the tube in use",
    authorization.TUBE_NAMED: "the tube that is named",
    authorization.TUBE_OF_JOB: "the tube that the job is in",
    authorization.WATCHED_TUBES: "the tubes that are watched",
    authorization.EVERY_TUBE: "every tube",
    authorization.TWO_TUBES: "both tubes that are named",
    authorization.TUBES_OF_JOBS: "the tube of each job",
}


class MissingError(Exception):
    """The documents lack something that the code has."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def options_page() -> str:
    """Every option of the server, and every key of a section of its config file."""
    parts = [
        "# All options\n",
        "Options of the command line, the environment and the config file ([config](../docs/config.md)). Made from the "
        "code of the server.\n",
    ]
    for option in options.OPTIONS:
        flags = ", ".join(f"`{flag} {option.kind.metavar}`".replace(" `", "`") for flag in option.flags)
        rows = [("on the command line", flags)]
        if option.also:
            rows.append(("", f"`{option.also[0]}`, which is `{option.short} {option.also[1]}`"))
        rows += [("in the environment", code(option.variable)), ("in the config file", code(option.key))]
        rows += value_rows(option)
        parts.append(f"## --{option.name.replace('_', '-')}\n\n{sentence(option)}\n\n{table(('', ''), rows)}")
    rows_of = (("listener", sections.LISTENER_KEYS), ("user", sections.USER_KEYS), ("tube", sections.TUBE_KEYS))
    for name, keys in rows_of:
        lines = [(code(key.key), default_of(key), wanted(key), key.meaning) for key in keys]
        parts.append(f"## The keys of a [[{name}]]\n\n{table(('key', 'default', 'value', 'meaning'), lines)}")
    return "\n".join(parts)


def default_of(option: Option) -> str:
    """The default of an option or a key, or that it must be given."""
    if not isinstance(option.default, (str, int, float, tuple)):
        return "must be given"
    return code(option.default) if option.default not in ("", (), False) else ""


def wanted(key: Option) -> str:
    """The values that a key may have, in words."""
    return "true or false" if key.kind is kinds.SWITCH else key.kind.wanted


def value_rows(option: Option) -> list[tuple[str, str]]:
    """What may be behind an option, if it takes a value."""
    if not option.kind.metavar:
        return []
    default = default_of(option)
    return [("value", option.kind.wanted)] + ([("default", default)] if default else [])


def sentence(option: Option) -> str:
    return option.meaning[:1].upper() + option.meaning[1:] + "."


def rights_of(command: Command) -> str:
    """What a user needs to give a command, in words."""
    if not command.right:
        return "none"
    names = (
        "any"
        if command.right == rights.ANY_RIGHT
        else " or ".join(RIGHTS[bit] for bit in RIGHTS if command.right & bit)
    )
    scope = SCOPES[command.scope]
    return f"{names}: {scope}" if scope else names


def commands_page(extensions: str) -> str:
    """Every command that clients may give.

    Args:
        extensions: the text of docs/protocol-extensions.md, which has the form of those that beanstalkd does not have.

    Raises:
        MissingError: that page has not the form of one of them.
    """
    forms, anchors = forms_in(extensions), anchors_in(extensions)
    rows = []
    for command in EXTENSIONS:
        if command.name not in forms or command.name not in anchors:
            raise MissingError(f"docs/protocol-extensions.md has no form of {command.name}, or no heading above it")
        page = f"../docs/protocol-extensions.md#{anchors[command.name]}"
        rows.append((f"[{command.name}]({page})", code(forms[command.name]), rights_of(command)))
    return "\n".join(
        [
            "# All commands\n",
            "All commands, and the right that a user needs ([access](../docs/access.md)). Without users, everybody may "
            "give all commands. Made from the code of the server.\n",
            "## Of the protocol\n",
            "beanstalkd's [protocol.txt](https://github.com/beanstalkd/beanstalkd/blob/master/doc/protocol.txt) "
            "describes these commands. [differences](../docs/differences.md) lists what differs here.\n",
            table(("command", "right"), [(code(command.name), rights_of(command)) for command in PROTOCOL]),
            "## Of this server\n",
            table(("command", "form", "right"), rows),
        ]
    )


def forms_in(page: str) -> dict[str, str]:
    """The first line of each command that a page shows, without its end, by the command's name."""
    forms: dict[str, str] = {}
    for found in re.finditer(r"^    (([a-z][a-z-]*)(?: [^\n]*?)?)\\r\\n", page, re.MULTILINE):
        forms.setdefault(found[2], found[1])
    return forms


def anchors_in(page: str) -> dict[str, str]:
    """What the section is called in a link that shows a command first, by the command's name."""
    anchors: dict[str, str] = {}
    section = ""
    for line in page.splitlines():
        if line.startswith("#"):
            section = re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        elif shown := re.match(r"    ([a-z][a-z-]*)", line):
            anchors.setdefault(shown[1], section)
    return anchors


def index_page(readme: str, pages: Iterable[str]) -> str:
    """The first page: the README, and the menu. All pages are in it, so that Sphinx misses none."""
    named = {page for _, each in CONTENTS for page in each}
    parts = [readme]
    for title, listed in CONTENTS:
        behind = sorted(set(pages) - named) if title == BEHIND else []
        parts.append("\n".join(["```{toctree}", ":maxdepth: 1", f":caption: {title}", "", *listed, *behind, "```", ""]))
    return "\n".join(parts)


def stage(place: Path) -> None:
    """Copy the pages to this directory, and make the others there."""
    for name in COPIED:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("site", "__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    made = place / "reference"
    made.mkdir()
    (made / "options.md").write_text(options_page())
    (made / "commands.md").write_text(commands_page((ROOT / "docs" / "protocol-extensions.md").read_text()))
    for name, text in reference.pages(ROOT / "client"):
        (made / f"{name}.md").write_text(text)
    readme = (place / "README.md").read_text()
    (place / "README.md").unlink()
    paths = list(place.rglob("*.md"))
    for path in paths:
        path.write_text(re.sub(r"\]\(((?:\.\./)*)README\.md(?=[#)])", r"](\1index.md", path.read_text()))
    pages = [str(path.relative_to(place).with_suffix("")) for path in paths]
    (place / "index.md").write_text(index_page(readme, pages))


def build(directory: Path) -> int:
    """Make the site in this directory; return Sphinx's exit status."""
    from sphinx.cmd.build import main as sphinx

    with tempfile.TemporaryDirectory() as name:
        pages, remembered = Path(name) / "pages", Path(name) / "remembered"
        stage(pages)
        how = ["-b", "html", "-q", "-W", "--keep-going", "-E", "-c", str(Path(__file__).parent)]
        status: int = sphinx([*how, "-d", str(remembered), str(pages), str(directory)])
        return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
