"""The documents as a site: Sphinx has nothing to say of them, and every option and every command is in it."""

import importlib.util
import re
import subprocess
import sys

import programs
import pytest

from beanstalk_server.settings.options import OPTIONS
from beanstalk_server.settings.sections import LISTENER_KEYS, TUBE_KEYS, USER_KEYS
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL
from docs.site.build import CONTENTS, MissingError, commands_page, options_page, stage
from harness.servers import INTERPRETED, ROOT, environment_of

EXTENSIONS_PAGE = (ROOT / "docs" / "protocol-extensions.md").read_text()


def test_every_option_is_there_with_all_its_names():
    page = options_page()
    for option in OPTIONS:
        section = page.split(f"## --{option.name.replace('_', '-')}\n")[1].split("\n## ")[0]
        for name in (*option.flags, f"`{option.variable}`", f"`{option.key}`"):
            assert name in section
        assert option.meaning[1:] in section


def test_every_key_of_every_section_is_there():
    page = options_page()
    for name, keys in (("listener", LISTENER_KEYS), ("user", USER_KEYS), ("tube", TUBE_KEYS)):
        section = page.split(f"## The keys of a [[{name}]]\n")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(.*?)`", section, re.MULTILINE) == [key.key for key in keys]


def test_every_command_is_there_with_its_right():
    ours = commands_page(EXTENSIONS_PAGE).split("## Of this server\n")
    assert re.findall(r"^\| `([\w-]+)`", ours[0], re.MULTILINE) == [command.name for command in PROTOCOL]
    assert re.findall(r"^\| \[([\w-]+)\]", ours[1], re.MULTILINE) == [command.name for command in EXTENSIONS]
    assert "| `kick` | admin: the tube in use |" in ours[0]
    assert (
        "(../docs/protocol-extensions.md#clear-tube) | `clear-tube <tube>` | admin: the tube that is named" in ours[1]
    )


def test_a_command_that_is_not_documented_is_an_error():
    with pytest.raises(MissingError, match="no form of clear-tube"):
        commands_page(EXTENSIONS_PAGE.replace("    clear-tube <tube>", "    wipe-tube <tube>"))


def test_every_page_is_in_the_menu_once(tmp_path):
    stage(tmp_path)
    listed = re.findall(r"^[\w/-]+$", (tmp_path / "index.md").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.rglob("*.md")} - {"index"}
    assert sorted(listed) == sorted(pages)
    assert {page for _, named in CONTENTS for page in named} <= pages


def test_the_readme_is_the_first_page(tmp_path):
    stage(tmp_path)
    assert (tmp_path / "index.md").read_text().startswith((ROOT / "README.md").read_text())
    assert not (tmp_path / "README.md").exists()


def test_the_api_of_the_client_is_there(tmp_path):
    stage(tmp_path)
    page = (tmp_path / "reference" / "client.md").read_text()
    assert re.findall(r"^## (\w+)", page, re.MULTILINE).count("Client") == 1
    put = page.split("### Client.put\n")[1].split("\n### ")[0]
    assert "```python\nClient.put(body, priority=DEFAULT_PRIORITY, delay=DEFAULT_DELAY, ttr=DEFAULT_TTR)\n```" in put
    assert "- `priority`: from 0, the most urgent, to 4,294,967,295." in put
    assert "- `TooLateError`: it is ready, reserved or buried." in page.split("### Client.cancel\n")[1]
    assert "### AsyncClient.put\n" not in page
    assert "It has the same members as `Client`" in page


def test_links_of_all_pages_lead_to_files_of_the_site(tmp_path):
    """Without Sphinx, which not every machine has."""
    stage(tmp_path)
    wrong = [
        f"{page.relative_to(tmp_path)}: {target}"
        for page in tmp_path.rglob("*.md")
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert wrong == []


def build(directory, *before):
    if importlib.util.find_spec("sphinx") is None:
        programs.missing("Sphinx", "pip install --group docs")
    line = [sys.executable, "-P", "-c", "; ".join([*before, "import sys", "from pathlib import Path", CALL])]
    return subprocess.run(
        [*line, str(directory)],
        capture_output=True,
        text=True,
        env=environment_of(INTERPRETED),
        cwd=directory.parent,
        check=False,
    )


CALL = "import docs.site.build as site; sys.exit(site.build(Path(sys.argv[1])))"


@pytest.mark.slow
def test_sphinx_has_nothing_to_say(tmp_path):
    done = build(tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    for page in [*ROOT.glob("docs/*.md"), ROOT / "reference" / "options.md", ROOT / "reference" / "commands.md"]:
        made = tmp_path / "site" / page.relative_to(ROOT).with_suffix(".html")
        assert "<h1>" in made.read_text()
    shown = (tmp_path / "site" / "reference" / "options.html").read_text()
    assert all(f'id="{option.name.replace("_", "-")}"' in shown for option in OPTIONS)


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    text = "# A page\\n\\n[a link](nowhere.md)\\n"
    pages = f"def stage(place): place.mkdir(); (place / 'index.md').write_text('{text}')"
    done = build(tmp_path / "site", f"exec({pages!r})", "import docs.site.build", "docs.site.build.stage = stage")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
