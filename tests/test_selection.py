"""No test is left out: some workers of `make test` and of `make test-all` run it, whatever its marks."""

from itertools import chain, combinations

import pytest
from selection import SOCKETS, runs_on

from harness.servers import ROOT

MARKS = ("sockets", "compiled", "interpreted", "slow")
SETS = [set(marks) for marks in chain.from_iterable(combinations(MARKS, number) for number in range(len(MARKS) + 1))]


@pytest.mark.parametrize("installed", ["compiled", "pure"])
@pytest.mark.parametrize("marks", SETS, ids=lambda marks: "-".join(sorted(marks)) or "none")
def test_every_test_runs_on_one_package_or_on_both(marks, installed):
    in_test = [package for package in ("sources", installed) if runs_on(package, marks, True, False)]
    in_test_all = [package for package in ("sources", installed) if runs_on(package, marks, True, True)]
    assert len(in_test) == 1
    assert in_test_all


def test_places_with_sockets_exist():
    assert [place for place in SOCKETS if not list(ROOT.glob(f"{place.removesuffix('/')}*"))] == []
