"""The simulation of a cluster that grows: it finds what limits the rate, and takes its costs from a run."""

import pytest

from bench.growth import Costs, Growth, costs_of, main, shapes, table
from bench.results import Results

CHEAP = Costs(
    home=2.0, entry=3.0, linked=2.0, more=0.0, linked_more=0.0, write=80.0, commit=20.0, command=0.0,
    led=0.0, followed=0.0, led_here=0.0, followed_here=0.0,
)  # fmt: skip


def rate(costs, nodes, shards, **options):
    return Growth(costs, nodes, shards, depth=100, **options).run(250_000)


def test_one_node_does_what_its_processor_does():
    found = rate(CHEAP, 1, 1)
    assert found.commands == pytest.approx(1e6 / CHEAP.home, rel=0.05)
    assert found.limit == "node"


def test_nodes_that_lead_shards_do_more_together():
    assert rate(CHEAP, 8, 8).commands == pytest.approx(8 * rate(CHEAP, 1, 1).commands, rel=0.05)


def test_nodes_without_a_shard_do_nothing_for_those_who_are_at_home():
    assert rate(CHEAP, 8, 1).commands == pytest.approx(rate(CHEAP, 1, 1).commands, rel=0.05)


def test_a_node_that_leads_more_shards_does_less_for_each_command():
    costs = CHEAP._replace(more=0.1)
    assert rate(costs, 1, 11).commands == pytest.approx(1e6 / (CHEAP.home + 1.0), rel=0.05)


def test_clients_anywhere_cost_two_nodes_a_command():
    nodes = 8
    away = (nodes - 1) / nodes
    each = (1 - away) * CHEAP.home + away * (CHEAP.entry + CHEAP.linked)
    found = rate(CHEAP, nodes, 64, at_home=False)
    assert found.commands == pytest.approx(nodes * 1e6 / each, rel=0.1)
    assert found.commands < rate(CHEAP, nodes, 64).commands


def test_a_primary_that_has_too_much_to_do_is_the_limit_and_more_of_them_are_not():
    costs = CHEAP._replace(command=1.0)
    found = rate(costs, 8, 64)
    assert found.limit == "primary"
    assert found.commands < 1e6
    more = rate(costs, 8, 64, primaries=8)
    assert more.limit == "node"
    assert more.commands > 3 * found.commands


def test_leases_of_many_shards_are_the_limit_when_they_take_half_of_a_primary():
    costs = CHEAP._replace(led=1e-4, followed=1e-4)
    assert rate(costs, 8, 64).limit == "node"
    found = rate(costs, 64, 128)
    assert found.leases == pytest.approx(0.82, abs=0.01)
    assert found.limit == "leases"
    assert rate(costs, 64, 128, primaries=8).limit != "leases"


def test_links_are_the_limit_when_they_take_half_of_a_node():
    costs = CHEAP._replace(followed_here=1e-3)
    assert rate(costs, 16, 64).limit == "node"
    assert rate(costs, 16, 1024).limit == "links"


def measured():
    """A run whose costs are those of CHEAP, but for one in flight."""
    results = Results()

    def add(server, work, size, **sample):
        results.add("shards", f"ours, cluster{server}", work, size, [sample])

    add("", "", 1, cpu=10.0, engine_cpu=2.0)
    add("", "", 100, cpu=2.0, engine_cpu=0.0)
    add(", 8 shards", "", 1, cpu=10.0, engine_cpu=4.8)  # of 50 commands in a write of 100 µs: 7 commits more
    add(", 8 shards", "", 100, cpu=2.7, engine_cpu=0.0)
    add(", routed", "", 1, cpu=11.0, engine_cpu=9.0)
    add(", routed", "", 100, cpu=2.5, engine_cpu=2.0)
    add(", 8 shards, routed", "", 1, cpu=12.0, engine_cpu=9.0)
    add(", 8 shards, routed", "", 100, cpu=3.0, engine_cpu=2.7)
    add("", "put, one connection", 1, engine_cpu=100.0)
    for count in (8, 64):
        add("", f"nothing to do, {count} shards", 0, cpu_ms=100.0 + count, engine_ms=10.0 + count, seconds=10.0)
        add(
            ", routed", f"nothing to do, {count} shards", 0,
            cpu_ms=50.0 + 2 * count, engine_ms=5.0 * count, seconds=10.0,
        )  # fmt: skip
    add("", "looks at 64 leases", 0, engine_cpu=1.5)
    return results


def test_costs_are_those_that_a_run_has_measured():
    costs = costs_of(measured(), "ours", 100)
    assert (costs.home, costs.entry, costs.linked) == (2.0, 3.0, 2.0)
    assert (costs.more, costs.linked_more) == pytest.approx((0.1, 0.1))
    assert (costs.write, costs.commit, costs.command) == pytest.approx((80.0, 20.0, 0.0))
    assert (costs.led, costs.led_here, costs.followed_here) == pytest.approx((1e-4, 1e-4, 2e-4))
    assert costs.followed == pytest.approx(1.5e-6), "one a second"
    assert costs_of(measured(), "ours", 1).home == 10.0


def test_a_run_that_has_not_measured_them_is_refused(tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.json"
    results = Results(about={"date": "today"})
    results.write(path)
    with pytest.raises(ValueError, match="not measured: shards: ours, cluster, put"):
        costs_of(results, "ours", 1)
    monkeypatch.setattr("sys.argv", ["growth", str(path)])
    assert main() == 1
    assert "not measured" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_cluster():
    rows = table(measured(), nodes=(1, 8), milliseconds=5.0)
    assert [row[:3] for row in rows[1:]] == [[f"{each}" for each in shape] for shape in shapes((1, 8))]
    assert len({len(row) for row in rows}) == 1
