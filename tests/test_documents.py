"""The documents: what they refer to exists, and their prose is wrapped."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for place in (".", "bench", "client", "conformance", "docs", "docs/decisions")
    for page in ROOT.glob(f"{place}/*.md")
)
WIDTH = 120
NOT_USED = ("so many", "so often", "so grave", "whoever", "what there is", "must never know")
LIST_OF_UNUSED = "\n".join(f'- "{words}"' for words in NOT_USED)
UNUSED = re.compile(rf"\b({'|'.join(NOT_USED)})\b", re.IGNORECASE)
MAKEFILE = (ROOT / "Makefile").read_text()


def name(page):
    return str(page.relative_to(ROOT))


def prose(text):
    """The lines of a page that people write: without code, tables, and what is generated."""
    code = generated = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif line.startswith("<!-- "):
            generated = not line.startswith("<!-- end of ")
        elif not (code or generated or line.startswith(("|", "    ", "!["))):
            yield number, line


@pytest.fixture(params=PAGES, ids=name)
def page(request):
    return request.param


def test_prose_is_wrapped(page):
    assert [number for number, line in prose(page.read_text()) if len(line) > WIDTH] == []


def test_links_lead_to_files(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_pictures_exist_have_texts_and_are_small(page):
    found = re.findall(r"!\[(.*?)\]\((?!https?:)([^)]+)\)", page.read_text())
    assert [target for text, target in found if not text] == []
    assert sum((page.parent / target).stat().st_size for _, target in found) <= 1_000_000


def test_each_page_is_linked_from_another():
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if (page.parent / target).resolve() != page
    }
    assert [name(page) for page in ROOT.glob("docs/*.md") if page not in linked] == []


def anchor(heading):
    """What a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_lead_to_headings(page):
    for target, fragment in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        text = ((page.parent / target) if target else page).read_text()
        headings = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        assert fragment in headings


def test_the_changelog_links_to_the_pages_that_it_names():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"(?<![\[(\w/])(?:docs/[\w-]+|SECURITY)\.md", text) == []


def test_paths_exist(page):
    """A path in backticks is one of the repository, of a package, of the tests or of the page's own directory."""
    paths = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml))`", page.read_text())
    roots = [ROOT, ROOT / "beanstalk_server", ROOT / "client/beanstalk_client", ROOT / "tests", page.parent]
    assert [path for path in paths if not any((root / path).exists() for root in roots)] == []


SOURCES = sorted(
    path
    for place in ("beanstalk_server", "client", "harness", "bench", "conformance", "tests", "examples")
    for path in (ROOT / place).rglob("*.py")
    if path.name != "test_mapping.py" and "build" not in path.parts  # the former has patterns, the latter copies
)
OF_OTHERS = {"manage.py"}
"""Files that the projects of our users have."""
NAMED_FILE = re.compile(r"(?<![\w/.*:-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|yaml))\b")


def remarks(source):
    """The docstrings and comments of a source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("rbuRBU")
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and text.startswith('"""')):
            yield token.string


def missing_files(path, source):
    """The files that the docstrings and comments of a source name, and that do not exist."""
    roots = [ROOT, ROOT / "beanstalk_server", ROOT / "client/beanstalk_client", ROOT / "tests", path.parent]
    named = set(NAMED_FILE.findall(source)) - OF_OTHERS
    missing = {each for each in named if not any((root / each).exists() for root in roots)}
    if not missing:
        return []  # most have none, and to take a source apart takes long
    return [each for text in remarks(source) for each in NAMED_FILE.findall(text) if each in missing]


def test_docstrings_and_comments_name_files_that_exist():
    assert {name(path): found for path in SOURCES if (found := missing_files(path, path.read_text()))} == {}


VAGUE = "nobody|somebody|everybody|anybody|whatever"
NOT_IN_SOURCES = re.compile(rf"\b({VAGUE}|{'|'.join(NOT_USED)})\b", re.IGNORECASE)


@pytest.mark.parametrize("place", ["beanstalk_server", "client/beanstalk_client"])
def test_sources_name_the_actor(place):
    """Docstrings, comments, help texts, log lines and error messages name the client, the operator or the thing."""
    found = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in sorted((ROOT / place).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NOT_IN_SOURCES.search(line)
    ]
    assert found == []


def test_a_file_that_does_not_exist_is_found_in_docstrings_and_comments():
    source = '"""See gone.py, and queue/job.py."""\nx = "other.py"  # not docs/gone.md, but docs/config.md\n'
    assert missing_files(ROOT / "beanstalk_server/x.py", source) == ["gone.py", "docs/gone.md"]


def test_make_targets_exist(page):
    targets = re.findall(r"(?:^    |`|\) )make ([a-z][\w-]*)", page.read_text(), re.MULTILINE)
    assert [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


@pytest.mark.parametrize("house", ["beanstalk_server", "client/beanstalk_client"])
def test_the_plan_of_the_house_lists_every_room(house):
    """docs/design.md, "The house": each directory with modules, in its place, and nothing that is not there."""
    block = re.search(rf"```\n({house}/.*?)```", (ROOT / "docs/design.md").read_text(), re.DOTALL)[1]
    listed, rooms = set(), []
    for line in block.splitlines():
        del rooms[(len(line) - len(line.lstrip())) // 2 :]
        rooms.append(line.split()[0])
        listed.add("".join(rooms))
    files = [path for path in (ROOT / house).rglob("*.py") if "management" not in path.parts]  # Django's own names
    assert listed == {f"{path.parent.relative_to(ROOT)}/" for path in files}


def test_every_room_has_a_row_in_contributing():
    rows = re.findall(r"^\| (`.+?`) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    listed = {room for row in rows for room in re.findall(r"`([\w/]+)/`", row)}
    houses = [ROOT, ROOT / "beanstalk_server"]
    assert {room for room in listed if not any((house / room).is_dir() for house in houses)} == set()
    assert {path.parent.name for path in (ROOT / "beanstalk_server").glob("*/*.py")} <= listed


def test_every_module_says_its_one_job_first():
    """The first sentence of a file is one sentence on its own line or lines, and no two files say the same."""
    firsts = {}
    for path in sorted((ROOT / "beanstalk_server").rglob("*.py")):
        found = re.match(r'r?"""(.+?[.:])(?:\s|""")', path.read_text(), re.DOTALL)
        assert found, f"{path.relative_to(ROOT)} does not begin with a sentence"
        assert firsts.setdefault(found[1], path) is path, f"{path} and {firsts[found[1]]} say the same of themselves"


FROM_AN_INDEX = re.compile(r"(?:pip install (?:-\S+ )*|uvx )['\"]?beanstalk-(?:server|client|conformance)")
WHEN = re.compile(r"from the first release on\b", re.IGNORECASE)


def test_a_name_that_is_on_no_index_yet_is_only_told_with_the_time_when_it_will_be():
    """Before that, the owner of that name on the index would run code on that machine."""
    for path in [*PAGES, *(ROOT / "beanstalk_server").rglob("*.py"), *(ROOT / "client").rglob("*.py")]:
        section = re.split(r"^#+ ", path.read_text(), flags=re.MULTILINE)
        for found in (each for text in section for each in FROM_AN_INDEX.finditer(text)):
            assert path.suffix == ".md", f"{name(path)} says {found[0]}"
            assert WHEN.search(found.string[: found.start()]), f"{name(path)} says {found[0]} without the time"
            assert "clone" in found.string


def test_words_that_are_not_used_are_not_used(page):
    assert list(UNUSED.finditer(page.read_text().replace(LIST_OF_UNUSED, ""))) == []


def test_the_glossary_lists_the_words_that_are_not_used():
    assert LIST_OF_UNUSED in (ROOT / "docs" / "glossary.md").read_text()
