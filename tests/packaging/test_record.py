"""The table of what the open-ended tests have covered: it is read, added to and written."""

import pytest

from harness.record import FUZZ, KILLS, KINDS, PAGE, SIMULATION, Kind, Row, added, read, record, with_rows

SEEDS = "65 seeds in 200 s, 1.1 h of virtual time: 236,089 commands answered, 1,946 not; 1,533 faults, 383 leaders; "
OUTPUTS = {
    SIMULATION: (SEEDS + "1 seeds failed: 164\n", 65, 1.1, 1),
    KILLS: ("leader: killed 20 times: 5 answered\nleader, 8 shards: killed 1,020 times: 7 answered\n", 1040, 0.0, 0),
    FUZZ: (
        "60 s: 200 scripts, 5 commands, 5 replies, 0 differences (0 scripts took too long)\n"
        "99 s: 400 scripts, 9 commands, 9 replies, 0 differences (0 scripts took too long)\n",
        400,
        0.0,
        0,
    ),
}


@pytest.mark.parametrize("covered", OUTPUTS)
def test_a_run_adds_to_its_row(covered):
    output, amount, hours, failed = OUTPUTS[covered]
    kind = Kind("a", "kills", "", covered)
    row = added(Row("a", 10, "kills", 2.0, 3, "then", "old"), kind, output, 0, "today", "new")
    assert row == Row("a", 10 + amount, "kills", 2.0 + hours, 3 + failed, "today", "new")


def test_a_run_that_fails_counts_as_one_failure():
    kind = Kind("a", "kills", "", KILLS)
    assert added(Row("a"), kind, "killed 3 times", 1, "", "").failed == 1
    with pytest.raises(ValueError, match=r"a: the output does not say .* \(exit status 2\)"):
        added(Row("a"), kind, "no server", 2, "", "")


def test_the_page_is_read_as_it_was_written():
    rows = [Row("a", 1234, "seeds", 1234.5, 0, "2026-11-29", "abc"), Row("b", 1, "kills", 0.0, 2, "2026-11-29", "abd")]
    page = with_rows(PAGE.read_text(), rows)
    assert list(read(page).values()) == rows
    assert with_rows(page, list(read(page).values())) == page
    assert with_rows(page, []).partition("|---")[0] == PAGE.read_text().partition("|---")[0]
    assert page.endswith(PAGE.read_text().rpartition("\n\n")[2])


def test_the_page_has_a_row_for_each_test():
    assert set(read(PAGE.read_text())) == {kind.name for kind in KINDS}


def test_all_kinds_run_and_are_written(tmp_path, capsys):
    page = tmp_path / "tested.md"
    page.write_text(PAGE.read_text())
    before = read(page.read_text())["server killed"].amount
    kinds = [
        Kind("server killed", "kills", "-c print('killed',7,'times')", KILLS),
        Kind("new", "seeds", "-c 1/0", KILLS),
    ]
    with pytest.raises(ValueError, match="new: the output does not say"):
        record(page, kinds, 0.1)
    assert read(page.read_text())["server killed"].amount == before + 7
    assert "server killed: 7 kills in" in capsys.readouterr().out
