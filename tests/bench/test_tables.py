"""The tables of a small run are right, and the targets are found in it."""

import pytest

from bench import tables
from bench.results import Results
from bench.scenarios import SCENARIOS
from bench.targets import TARGETS

LAYOUTS = {name: scenario.layout for name, scenario in SCENARIOS.items()}
ABOUT = {"commit": "abc1234", "date": "2001-02-03", "machine": "2 processors", "pairs": 2, "minutes": 3.2}


def cycle(rate, cpu):
    busy = {"server_busy": 0.5, "generator_busy": 0.9}
    return {"rate": rate, "cpu": cpu, "p50": 0.5, "p99": 1.0, "p999": 2.0} | busy


@pytest.fixture
def results():
    versions = {"versions": {"beanstalkd": "beanstalkd 1.12"}}
    results = Results(ABOUT | versions, missing={"redis": "redis-server is not installed"})
    for connections in (1, 50):
        results.add("request-response", "beanstalkd", "", connections, [cycle(40_000, 12), cycle(44_000, 10)])
        results.add("request-response", "ours", "", connections, [cycle(44_000, 10), cycle(44_000, 10)])
    results.add("delayed", "ours", "put", 1_000_000, [{"bytes_per_job": 437.0, "cpu": 4.0, "rate": 200_000.0}])
    return results


def table(results, name):
    return tables.points_table(results, name, LAYOUTS[name])


def found(results, scenario):
    """The figures of a scenario that have a target, by the target's work."""
    return {target.work: figure for target in TARGETS if (figure := target.found(results))}


def test_a_row_has_its_ratio_to_the_first_server_at_the_same_size(results):
    rows = table(results, "request-response")
    assert rows[0][:4] == ["connections", "server", "per second", "CPU, µs each"]
    assert [row[:2] for row in rows[1:]] == [["1", "beanstalkd"], ["1", "ours"], ["50", "beanstalkd"], ["50", "ours"]]
    ours = dict(zip(rows[0], rows[4], strict=True))
    assert ours["× per CPU second"] == "1.10 × (1.00 to 1.20)"
    assert ours["× per second"] == "1.05 × (1.00 to 1.10)"
    assert ours["per second"] == "44,000 \\*"  # the generator was the busier one
    assert rows[3][-1] == ""


def test_a_server_stands_beside_itself_without_what_was_added_and_a_policy_beside_the_same():
    results = Results()
    for server, cpu in (("beanstalkd -f0", 20), ("beanstalkd -f50", 10), ("ours -f0", 10), ("fork -D", 5)):
        results.add("binlog", server, "", 1, [cycle(1, cpu)])
    assert [row[-1] for row in table(results, "binlog")[1:]] == ["", "", "2.00 ×", "4.00 ×"]
    for server, cpu in (("beanstalkd", 20), ("ours", 10), ("ours, TLS", 15)):
        results.add("tls", server, "", 1, [cycle(1, cpu)])
    assert [row[-2] for row in table(results, "tls")[1:]] == ["", "2.00 ×", "0.67 ×"]


def test_every_client_stands_beside_the_first():
    results = Results()
    for client, rate in (("greenstalk", 10.0), ("Client", 20.0), ("Client, 100 in a pipeline", 40.0)):
        results.add("clients", client, "put", 0, [{"rate": rate, "client_cpu": 10.0 / rate, "server_cpu": 5.0}])
    assert [row[-2:] for row in table(results, "clients")[1:]] == [["", ""], ["2.00 ×"] * 2, ["4.00 ×"] * 2]


def test_task_queues_have_a_row_each_that_says_how_far_ours_is_ahead():
    results = Results()
    measures = ("rate", "cpu", "server_cpu", "put_cpu", "put_server_cpu")
    results.add("workers", "ours", "", 0, [dict.fromkeys(measures, 10.0), dict.fromkeys(measures, 20.0)])
    results.add("workers", "theirs", "", 0, [dict.fromkeys(measures, 20.0), dict.fromkeys(measures, 30.0)])
    head, ours, theirs = table(results, "workers")
    assert len(head) == len(ours) == len(theirs)
    assert ours[:2] == ["ours", "15 (10 to 20)"] or ours[:2] == ["ours", "15"]
    assert ours[-3:] == ["", "", ""]
    assert theirs[-3:] == ["0.58 × (0.50 to 0.67)", "1.75 × (1.50 to 2.00)", "1.75 × (1.50 to 2.00)"]


def test_every_target_is_shown_even_if_it_was_not_measured(results):
    rows = {row[0]: row[1:] for row in tables.targets_table(results)}
    assert len(rows) == len([target for target in TARGETS if not target.beside]) + 1
    assert rows[TARGETS[0].work] == ["1.10 × (1.00 to 1.20)", "1.25 ×", "no", "", ""]
    assert rows["memory for each of a million delayed jobs of 100 bytes"] == [
        *("437 bytes", "299 bytes", "no", "200 bytes", "no")
    ]
    assert rows["the same with -b, bodies of 1,000 bytes"] == ["not measured", "250 bytes", "", "150 bytes", ""]


def test_a_figure_beside_a_server_that_only_some_runs_have_is_shown_in_those(results):
    beside = {target.work for target in TARGETS if target.beside}
    assert not {row[0] for row in tables.targets_table(results)} & beside
    results.about["peers"] = ["beanstalkd", "ours", "fork"]
    results.add("request-response", "fork", "", 50, [cycle(50_000, 8), cycle(50_000, 9)])
    results.add("binlog", "ours -f0", "", 1, [cycle(50_000, 15), cycle(50_000, 15)])
    results.add("binlog", "fork -D", "", 1, [cycle(50_000, 12), cycle(50_000, 12)])
    rows = {row[0]: row[1:] for row in tables.targets_table(results)}
    assert rows["the same, relative to the C fork"] == ["0.85 × (0.80 to 0.90)", "0.85 ×", "yes", "1 ×", "no"]
    assert rows["the same, relative to the C fork with -D: commands per CPU second"][0] == "0.80 ×"


def test_an_answer_under_attack_may_take_20_ms_or_twice_what_beanstalkd_takes():
    results = Results()

    def add(work, **most):
        for server, value in most.items():
            results.add("hostile", server.replace("_", " -"), work, 0, [{"most": value}, {"most": value}])
        (figure,) = found(results, "hostile").values()
        return figure.median

    assert add("nobody", beanstalkd=0.1, ours=5.0) == 0.25  # of 20 ms
    assert add("flood", beanstalkd_f0=15.0, ours_f0=24.0, beanstalkd_f50=100.0) == 0.8  # of 30 ms
    assert add("clear", ours_f0=30.0) == 1.5  # where beanstalkd cannot, of 20 ms
    assert [row[1] for row in table(results, "hostile")[1:] if row[-1]] == ["ours", "ours -f0"]


@pytest.mark.parametrize(
    ("scenario", "points", "medians"),
    [
        ("stalls", {("ours", "flight", 0): [{"held_cpu": 4.0}], ("no server", "", 0): [{"held_cpu": 40.0}]}, [4.0]),
        ("stalls", {("ours", "", 0): [{"held_cpu": cpu} for cpu in (3.0, 9.0, 5.0)]}, [5.0]),
        ("tls", {("ours", "", 1): [cycle(1, 10)], ("ours, TLS", "", 1): [cycle(1, 15)]}, [1.5]),
        (
            "arrivals",
            {("ours", "a", 0): [{"held_cpu": 2.0}, {"held_cpu": 3.0}], ("ours", "b", 0): [{"grown": 500_000}]},
            [3.0, 0.5],
        ),
        (
            "policies",
            {
                ("ours", "", 0): [cycle(1, 10) | {"most": 9.0}],
                ("ours, policies of other tubes", "", 0): [cycle(1, 11)],
                ("ours", "expire", 1_000): [{"most": 1.0}, {"most": 4.0}],
                ("ours", "time out", 1_000): [{"most": 3.0}],
            },
            [1.1, 3.0],
        ),
        (
            "metrics",
            {
                ("ours", "", 0): [cycle(1, 10)],
                ("ours, scraped each second", "", 0): [cycle(1, 11)],
                ("ours, metrics", "1,000 tubes, no scrapes", 1_000): [{"most": 9.0}],
                ("ours, metrics", "1,000 tubes, scraped continuously", 1_000): [{"most": 3.0}],
            },
            [1.1, 3.0],
        ),
    ],
)
def test_figures_are_those_of_the_worst_load_or_beside_the_same_server_without(scenario, points, medians):
    results = Results()
    for (server, work, size), samples in points.items():
        results.add(scenario, server, work, size, samples)
    assert [figure.median for figure in found(results, scenario).values()] == pytest.approx(medians)


def test_tables_are_written_between_markers_and_nowhere_else(results, tmp_path):
    document = tmp_path / "page.md"
    document.write_text(
        "Before.\n<!-- bench: about -->\nold\n<!-- end of bench: about -->\n"
        "<!-- bench: start -->\nstays\n<!-- end of bench: start -->\nAfter.\n"
    )
    assert tables.write_into(document, results, LAYOUTS) == ["start"]
    text = document.read_text()
    assert text.startswith("Before.\n<!-- bench: about -->\n\nCommit abc1234, 2001-02-03")
    assert "Not measured: redis (redis-server is not installed)." in text
    assert "old" not in text
    assert text.endswith("<!-- bench: start -->\nstays\n<!-- end of bench: start -->\nAfter.\n")
    tables.write_into(document, results, LAYOUTS)
    assert document.read_text() == text


def test_a_run_of_some_scenarios_says_below_their_tables_what_it_is_and_leaves_the_rest(tmp_path):
    results = Results(ABOUT | {"versions": {"task queues": "celery 5.7"}})
    results.add("clients", "greenstalk", "put", 0, [{"rate": 10.0, "client_cpu": 5.0, "server_cpu": 5.0}])
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- bench: {name} -->\nx\n<!-- end of bench: {name} -->\n" for name in ("about", "clients"))
    )
    assert tables.write_into(page, results, LAYOUTS) == ["about"]
    kept, drawn = page.read_text().split("<!-- end of bench: about -->")
    assert kept.endswith("\nx\n")
    assert "| put | greenstalk | 10 | 5.0 | 5.0 |" in drawn
    assert "Commit abc1234, 2001-02-03: 2 processors. celery 5.7." in drawn
