"""The tables and plots of a small run are right."""

import pytest

from bench import tables
from bench.results import Results
from bench.targets import TARGETS


def cycle(rate, cpu, p99=1.0):
    return {
        "rate": rate,
        "cpu": cpu,
        "user": cpu / 2,
        "system": cpu / 2,
        "p50": p99 / 2,
        "p99": p99,
        "p999": p99 * 2,
        "server_busy": 0.5,
        "generator_busy": 0.9,
    }


@pytest.fixture
def results():
    results = Results(
        {
            "commit": "abc1234",
            "date": "2001-02-03 04:05:06 UTC",
            "machine": "2 processors",
            "versions": {"beanstalkd": "beanstalkd 1.12"},
            "pairs": 2,
            "minutes": 3.2,
        },
        missing={"redis": "redis-server is not installed"},
    )
    for connections in (1, 50):
        results.add("request-response", "beanstalkd", "", connections, [cycle(40_000, 12), cycle(44_000, 10)])
        results.add("request-response", "ours", "", connections, [cycle(44_000, 10), cycle(44_000, 10)])
    results.add("delayed", "ours", "put", 1_000_000, [{"bytes_per_job": 437.0, "cpu": 4.0, "rate": 200_000.0}])
    results.add("steady", "ours", "", 0, [cycle(1, 1) | {"resident": 30e6, "seconds": 1.0} for _ in range(3)])
    results.add("stalls", "ours", "in flight", 0, [{"longest": 9.0, "cpu": 4.0}])
    return results


def test_a_row_has_its_ratio_to_the_first_server_at_the_same_size(results):
    rows = tables.points_table(results, "request-response")
    assert rows[0][:4] == ["connections", "server", "commands/s", "CPU, µs a command"]
    assert [row[:2] for row in rows[1:]] == [["1", "beanstalkd"], ["1", "ours"], ["50", "beanstalkd"], ["50", "ours"]]
    ours = dict(zip(rows[0], rows[4], strict=True))
    assert ours["× commands a CPU second"] == "1.10 × (1.00 to 1.20)"
    assert ours["× rate"] == "1.05 × (1.00 to 1.10)"
    assert ours["commands/s"] == "44,000 \\*"  # the generator was the busier one
    assert rows[3][-1] == ""


def test_the_longest_stretch_is_the_worst_loads_by_the_median_of_its_measurements(results):
    target = next(target for target in TARGETS if target.scenario == "stalls")
    assert target.found(results) == (4.0, 4.0, 4.0)
    results.add("stalls", "ours", "a million", 0, [{"cpu": cpu} for cpu in (3.0, 9.0, 5.0)])
    results.add("stalls", "no server", "a look at the clock", 0, [{"cpu": 40.0}])
    assert target.found(results) == (5.0, 3.0, 9.0)


def test_every_target_is_shown_even_if_it_was_not_measured(results):
    rows = tables.targets_table(results)
    found = {row[0]: row[1:] for row in rows}
    assert len(found) == len([target for target in TARGETS if not target.beside]) + 1
    assert found[TARGETS[0].work] == ["1.10 × (1.00 to 1.20)", "1.25 ×", "no", "", ""]
    assert found["memory for each of a million delayed jobs of 100 bytes"] == [
        *("437 bytes", "299 bytes", "no", "200 bytes", "no")
    ]
    assert found["the same with -b, bodies of 1,000 bytes"] == ["not measured", "250 bytes", "", "150 bytes", ""]


def test_a_figure_beside_a_server_that_only_some_runs_have_is_shown_in_those(results):
    beside = [target.work for target in TARGETS if target.beside]
    assert not {row[0] for row in tables.targets_table(results)} & set(beside)
    results.about["peers"] = ["beanstalkd", "ours", "fork"]
    results.add("request-response", "fork", "", 50, [cycle(50_000, 8), cycle(50_000, 9)])
    results.add("binlog", "ours -f0", "", 1, [cycle(50_000, 15), cycle(50_000, 15)])
    results.add("binlog", "fork -D", "", 1, [cycle(50_000, 12), cycle(50_000, 12)])
    found = {row[0]: row[1:] for row in tables.targets_table(results)}
    assert found["the same beside the C fork"] == ["0.85 × (0.80 to 0.90)", "0.85 ×", "yes", "1 ×", "no"]
    assert found["the same beside the C fork's -D: commands a CPU second"][0] == "0.80 ×"


def test_an_answer_under_attack_may_take_20_ms_or_twice_what_beanstalkd_takes(results):
    target = next(target for target in TARGETS if target.scenario == "hostile")
    assert target.found(results) is None

    def add(work, **most):
        for server, value in most.items():
            results.add("hostile", server.replace("_", " -"), work, 0, [{"most": value}, {"most": value}])

    add("nobody", beanstalkd=0.1, ours=5.0)
    assert target.found(results).median == 0.25  # of 20 ms
    add("flood", beanstalkd_f0=15.0, ours_f0=24.0, beanstalkd_f50=100.0)
    assert target.found(results).median == 0.8  # of 30 ms
    add("clear", ours_f0=30.0)
    assert target.found(results).median == 1.5  # where beanstalkd cannot, of 20 ms
    rows = tables.points_table(results, "hostile")
    assert rows[4][-1] == "1.60 ×"
    assert [row[1] for row in rows[1:] if row[-1]] == ["ours", "ours -f0"]


def test_tls_stands_beside_the_same_without_and_arrivals_by_their_worst(results):
    targets = {target.work: target for target in TARGETS if target.scenario in ("tls", "arrivals")}
    assert not any(target.found(results) for target in targets.values())
    results.add("tls", "ours", "", 1, [cycle(50_000, 10), cycle(50_000, 12)])
    results.add("tls", "ours, TLS", "", 1, [cycle(30_000, 15), cycle(30_000, 18)])
    results.add("arrivals", "ours", "come back", 0, [{"held_cpu": 2.0}, {"held_cpu": 3.0}])
    results.add("arrivals", "ours", "wrong tokens", 0, [{"grown": 500_000, "cpu": 100.0}])
    found = [target.found(results) for target in targets.values()]
    assert [figure and figure.median for figure in found] == [1.5, None, 3.0, 0.5]
    assert [row[-2] for row in tables.points_table(results, "tls")[1:]] == ["", "0.67 ×"]
    rows = tables.points_table(results, "arrivals")
    assert [row[-1] for row in rows] == ["memory grown, MB", "", "0.5"]


def test_policies_of_other_tubes_stand_beside_none_and_jobs_that_lapse_by_the_worse_load(results):
    beside, lapsed = [target for target in TARGETS if target.scenario == "policies"]
    assert beside.found(results) is None and lapsed.found(results) is None
    results.add("policies", "ours", "", 0, [cycle(50_000, 10) | {"most": 9.0}])
    results.add("policies", "ours, policies of other tubes", "", 0, [cycle(50_000, 11)])
    results.add("policies", "ours", "expire", 1_000, [cycle(100, 2) | {"most": 1.0}, cycle(100, 2) | {"most": 4.0}])
    results.add("policies", "ours", "run out of time", 1_000, [cycle(100, 2) | {"most": 3.0}])
    assert beside.found(results).median == pytest.approx(1.1)
    assert lapsed.found(results).median == 3.0


def test_metrics_stand_beside_none_and_scrapes_by_what_another_client_waits(results):
    beside, waited = [target for target in TARGETS if target.scenario == "metrics"]
    assert beside.found(results) is None and waited.found(results) is None
    results.add("metrics", "ours", "", 0, [cycle(50_000, 10)])
    results.add("metrics", "ours, metrics", "", 0, [cycle(50_000, 15)])
    results.add("metrics", "ours, scraped each second", "", 0, [cycle(50_000, 11)])
    results.add("metrics", "ours, metrics", "1,000 tubes, no scrapes", 1_000, [{"most": 9.0}])
    results.add("metrics", "ours, metrics", "1,000 tubes, scraped again and again", 1_000, [{"most": 3.0}])
    assert beside.found(results).median == pytest.approx(1.1)
    assert waited.found(results).median == 3.0


def looks(end, *figures):
    names = ("seconds", "jobs", "resident", "directory")
    return [dict(zip(names, each, strict=True)) | {"peak": each[2], "cpu": end} for each in figures]


def test_a_backlog_has_a_row_for_each_phase_and_a_plot_over_time(tmp_path):
    results = Results()
    put = looks(0.4, (0.0, 0, 30e6, 20e6), (1.0, 60_000, 40e6, 700e6), (2.0, 100_000, 55e6, 1e9))
    cancel = looks(0.1, (0.0, 0, 55e6, 1e9), (0.5, 10_000, 52.5e6, 1e9))
    take = looks(0.9, (0.0, 0, 52e6, 1e9), (3.0, 90_000, 31e6, 20e6))
    for work, samples in (("put", put), ("cancel a tenth", cancel), ("reserve + delete", take)):
        results.add("backlog", "ours", work, 100_000, samples)
    rows = tables.points_table(results, "backlog")
    assert rows[1:] == [
        ["ours", "put", "100,000", "2.0", "50,000", "4.0", "55", "55", "250", "1,000", "1,000"],
        ["ours", "cancel a tenth", "10,000", "0.5", "20,000", "10.0", "55", "52", "250", "1,000", "1,000"],
        ["ours", "reserve + delete", "90,000", "3.0", "30,000", "10.0", "52", "31", "", "1,000", "20"],
    ]
    assert len(rows[0]) == len(rows[1])
    assert "| ours | put | 100,000 |" in tables.sections(results)["backlog"]()
    pytest.importorskip("matplotlib", reason="matplotlib comes with `make bench`")
    from bench import plots

    assert {file.name for file in plots.draw(results, tmp_path)} == {"backlog.svg", "backlog.png"}


def test_tables_are_written_between_markers_and_nowhere_else(results, tmp_path):
    document = tmp_path / "page.md"
    document.write_text(
        "Before.\n<!-- bench: about -->\nold\n<!-- end of bench: about -->\n"
        "<!-- bench: start -->\nstays\n<!-- end of bench: start -->\nAfter.\n"
    )
    assert tables.write_into(document, results) == ["start"]
    text = document.read_text()
    assert text.startswith("Before.\n<!-- bench: about -->\n\nCommit abc1234, 2001-02-03")
    assert "Not measured: redis (redis-server is not installed)." in text
    assert "old" not in text
    assert text.endswith("<!-- bench: start -->\nstays\n<!-- end of bench: start -->\nAfter.\n")
    tables.write_into(document, results)
    assert document.read_text() == text


@pytest.mark.slow
def test_plots_are_small_and_the_same_each_time(results, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with `make bench`")
    from bench import plots

    files = plots.draw(results, tmp_path)
    assert {file.name for file in files} == {
        f"{name}.{kind}" for name in ("request-response", "delayed", "steady", "stalls") for kind in ("svg", "png")
    }
    assert max(file.stat().st_size for file in files) < 100_000
    before = [file.read_bytes() for file in files if file.suffix == ".svg"]
    assert [file.read_bytes() for file in plots.draw(results, tmp_path) if file.suffix == ".svg"] == before
