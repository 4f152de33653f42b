"""Screens of `beanstalk top`, compared line by line, and of every size."""

import io

from beanstalk_client.cli.top_screen import Status, amount, draw, rate, span
from beanstalk_client.cli.top_state import JobsOfTube, Mode, View
from beanstalk_client.observe.sampler import Sampler
from beanstalk_client.observe.samples import TUBE_FIGURES
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

STATUS = Status(target="10.0.0.1:11300", clock="12:34:56")


def figures(**some):
    return dict.fromkeys(TUBE_FIGURES.values(), "0") | {
        key.replace("_", "-"): str(value) for key, value in some.items()
    }


def busy():
    """A server with three tubes, sampled twice."""
    sampler = Sampler(None, lambda: 11.0, step=1.0)
    samples = sampler.samples
    for moment, puts, ready in ((10.0, 1000, 40), (11.0, 1250, 80)):
        samples.take_server(
            moment,
            {
                "version": "1.13.0",
                "uptime": "90061",
                "id": "a",
                "current-jobs-ready": str(ready),
                "current-jobs-reserved": "2",
                "current-jobs-delayed": "1234567",
                "current-jobs-buried": "3",
                "current-tubes": "3",
                "current-connections": "5",
                "current-waiting": "1",
                "total-jobs": str(puts),
                "cmd-put": str(puts),
                "rusage-utime": str(moment / 4),
                "rusage-stime": "0.5",
            },
        )
        samples.take_tube(moment, "default", figures())
        samples.take_tube(
            moment,
            "mail",
            figures(
                current_jobs_ready=ready,
                current_jobs_reserved=2,
                current_jobs_delayed=1234567,
                total_jobs=puts,
                cmd_delete=puts // 10,
            ),
        )
        samples.take_tube(moment, "bill", figures(current_jobs_buried=3, pause_time_left=3599))
        sampler._record(moment)
    samples.tubes["mail"].next_age = 75
    sampler.survey.is_complete = True
    return sampler


def screen(sampler, *keys, width=80, height=14, status=STATUS, jobs=None):
    """The lines of a screen after some keys."""
    view = View(sampler.samples)
    view.rank()
    for key in keys:
        view.press(key)
    if jobs is not None:
        view.show_jobs(jobs)
    return [line.rstrip() for line in painted(sampler, view, width, height, status).split("\n")]


def painted(sampler, view, width, height, status=STATUS, **terminal):
    """The screen as the live view prints it."""
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False, **terminal)
    console.print(Screen(draw(sampler, view, status, (width, height))), end="")
    text = console.file.getvalue()
    if not terminal:
        assert all(cell_len(line) <= width for line in text.split("\n"))
    assert text.count("\n") == height - 1
    return text


def test_a_screen_of_80_columns():
    assert screen(busy())[:9] == [
        "beanstalk top  10.0.0.1:11300  1.13.0  up 25h                           12:34:56",
        "jobs  80 ready  2 reserved  1.2M delayed  3 buried     tubes 3   clients 5 (1 wa",
        "rates 250/s in  -/s reserves  -/s out  250/s commands     CPU 25%",
        "ready                   ▅█  in                    █  out",
        "tubes 1 to 3 of 3 by ready",
        "TUBE            READY  RESVD  DELAY   BURY   IN/S  OUT/S   TREND  AGE PAUSE SEEN",
        "mail               80      2   1.2M      0    250   25.0   +40.0  75s",
        "bill                0      0      0      3    0.0    0.0     0.0    -   59m",
        "default             0      0      0      0    0.0    0.0     0.0    -",
    ]


def test_a_pause_until_resumed_has_no_time_left():
    sampler = busy()
    sampler.samples.take_tube(sampler.now, "bill", figures(pause_time_left=2**32 - 60))
    assert screen(sampler)[7].split()[-1] == "on"


def test_numbers_are_short():
    assert [amount(n) for n in (None, 0, 99_999, 100_000, 1_234_567, 99_960_000, 12e9)] == [
        "-", "0", "99999", "100k", "1.2M", "100M", "12.0G",
    ]  # fmt: skip
    assert [rate(n) for n in (None, 0.0, 0.04, 99.94, 99.96, 123456.0)] == ["-", "0.0", "0.0", "99.9", "100", "123k"]
    assert [rate(n, "+") for n in (None, 0.0, -0.01, 12.0, -12.0)] == ["-", "0.0", "0.0", "+12.0", "-12.0"]
    assert [span(n) for n in (None, 0, 99.9, 100, 5999, 6000, 47 * 3600, 48 * 3600, 86400 * 999)] == [
        "-", "0s", "99s", "1m", "99m", "1h", "47h", "2d", "999d",
    ]  # fmt: skip


@given(st.floats(-1e18, 1e18))
def test_no_number_is_wider_than_its_column(number):
    assert len(amount(number)) <= 6
    assert len(rate(number, "+")) <= 7


def test_sparklines():
    assert STATUS.sparkline([0, 1, None, 7]) == "▁▂ █"
    assert STATUS.sparkline([0, 0]) == "▁▁"
    assert Status("", encoding="ascii").sparkline([1, 2]) == "=#"


def test_the_columns_that_fit_are_shown_the_most_important_first():
    narrow = next(line for line in screen(busy(), width=40) if line.startswith("TUBE"))
    assert narrow.split() == ["TUBE", "READY", "RESVD", "DELAY", "BURY"]
    wide = screen(busy(), width=140)
    assert "PAUSE  READY OVER TIME" in wide[5]
    assert "▅█" in wide[6]
    assert "59m" in wide[7]


def test_old_figures_have_their_age():
    sampler = busy()
    sampler.samples.take_tube(60.0, "mail", figures(current_jobs_ready=1))
    sampler._clock = lambda: 61.0
    lines = screen(sampler)
    by_name = {line.split()[0]: line.split() for line in lines[6:9]}
    assert "50s" in by_name["bill"]
    assert "50s" not in by_name["mail"]
    assert lines[0].split()[6:8] == ["50s", "ago"]  # and so is the server itself


def test_an_error_is_shown():
    assert screen(busy(), status=Status("a", notice="a: connection lost"))[4] == "a: connection lost"


def test_before_the_first_sample():
    lines = screen(Sampler(None))
    assert "no sample yet" in lines[0]
    assert lines[1].startswith("jobs  - ready")
    assert lines[4] == "tubes 0 to 0 of 0 by ready; not all tubes have been sampled yet"


def test_a_terminal_without_utf_8():
    sampler = busy()
    sampler.samples.take_tube(11.0, "€", figures(current_jobs_ready=99))
    lines = screen(sampler, width=140, status=Status("a", encoding="ascii"))
    assert all(line.isascii() for line in lines)
    assert lines[3].split()[1] == "=#"
    assert lines[6].startswith("\\u20ac ")


def test_the_foot_has_the_keys_a_message_or_the_prefix():
    assert screen(busy())[-1].startswith("q quit")
    assert screen(Sampler(None), "enter")[-1] == "no tube is selected"
    lines = screen(busy(), *"/ma")
    assert lines[-1].startswith("tubes that begin with: ma_")
    assert lines[4].startswith("tubes 1 to 1 of 1 by ready, beginning with ma")


def test_the_help_fits_on_a_screen_of_24_lines():
    lines = screen(busy(), "?", height=24)
    assert lines[-1] == "press any key to go back"
    assert any("reverse the order" in line for line in lines)


def test_jobs_of_a_tube():
    assert screen(busy(), "enter")[5] == "fetching"
    jobs = [
        {"id": 3, "state": "ready", "pri": "10", "age": "5", "size": "11", "key": "order-3"},
        {"id": 4, "state": "buried", "pri": "4294967295", "age": "100", "reason": "released"},
        {"id": 5, "state": "delayed"},
    ]
    found = JobsOfTube("mail", 8.0, jobs, {3: b"\x1b[2Jhello\nworld\xff"}, percentiles={"waited": [1.0, 2.0, 3.0]})
    lines = screen(busy(), "enter", width=140, jobs=found)
    assert lines[4] == "the first jobs of mail in each state, 3s ago"
    assert lines[5] == "waited 1 / 2 / 3 s"
    assert lines[7].split()[:4] == ["3", "ready", "10", "5s"]
    assert lines[7].endswith(r"order-3 \x1b[2Jhello\nworld\xff")
    assert lines[8].endswith("(released)")
    assert screen(busy(), "enter", jobs=JobsOfTube("mail", 8.0, error="not found"))[5] == "not found"
    assert screen(busy(), "enter", jobs=JobsOfTube("mail", 8.0))[5] == "no jobs"
    assert screen(busy(), "enter", jobs=JobsOfTube("mail", 8.0, jobs * 9))[-1].startswith("escape back")


def test_a_server_cannot_send_control_sequences_or_markup():
    sampler = Sampler(None, lambda: 1.0)
    sampler.samples.take_server(1.0, {"version": "\x1b[2J[bold]\x9b1m"})
    sampler.samples.take_tube(1.0, "\x1b]0;x\x07[red]", {})
    text = "\n".join(screen(sampler, width=200))
    assert not {"\x1b", "\x07", "\x9b"} & set(text)
    assert "[bold]" in text
    assert "[red]" in text


def test_the_selection_and_buried_jobs_are_marked():
    view = View(busy().samples)
    view.rank()
    text = painted(busy(), view, 80, 14, force_terminal=True, color_system="standard")
    assert "\x1b[7mmail" in text
    assert "\x1b[31m" in text


@settings(max_examples=examples(60))
@given(
    st.integers(1, 200),
    st.integers(1, 40),
    st.sampled_from(list(Mode)),
    st.lists(st.text(min_size=1, max_size=220), max_size=4, unique=True),
    st.sampled_from(["ascii", "utf-8"]),
)
def test_a_screen_of_any_size_is_filled_and_not_more(width, height, mode, names, encoding):
    sampler = busy()
    sampler._clock = lambda: 1e9
    view = View(sampler.samples)
    for name in names:
        sampler.samples.take_tube(1.0, name, figures(current_jobs_ready=2**63))
    view.rank()
    view.mode = mode
    view.tube = names[0] if names else "mail"
    view.show_jobs(JobsOfTube(view.tube, 1.0, [{"id": 2**64, "state": "ready", "key": name} for name in names]))
    painted(sampler, view, width, height, Status("a", encoding=encoding))
