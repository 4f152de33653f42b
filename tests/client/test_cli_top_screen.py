"""Screens of `beanstalk top`, compared line by line, and of every size."""

from beanstalk_client.cli.top_samples import TUBE_FIGURES, Samples
from beanstalk_client.cli.top_screen import Status, amount, draw, growth, paint, rate, span, sparkline
from beanstalk_client.cli.top_view import JobsOfTube, Mode, View
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

STATUS = Status(target="10.0.0.1:11300", clock="12:34:56")


def figures(**some):
    return dict.fromkeys(TUBE_FIGURES, "0") | {key.replace("_", "-"): str(value) for key, value in some.items()}


def busy():
    """A server with three tubes, sampled twice."""
    samples = Samples()
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
        samples.watch(["mail"])
    samples.tubes["mail"].next_age = 75
    return samples


def screen(view, width=80, height=14, now=11.0, status=STATUS, **arguments):
    view.rank()
    lines = draw(view._samples, view, status, (width, height), now, **arguments)
    assert len(lines) == height
    assert all(cell_len(line.plain) <= width for line in lines)
    return [line.plain.rstrip() for line in lines]


def test_a_screen_of_80_columns():
    assert screen(View(busy()))[:9] == [
        "beanstalk top  10.0.0.1:11300  1.13.0  up 25h                           12:34:56",
        "jobs  80 ready  2 reserved  1.2M delayed  3 buried     tubes 3   clients 5 (1 wa",
        "rates 250/s in  -/s reserves  -/s out  250/s commands     CPU 25%",
        "ready                   ▅█  in                    █  out",
        "tubes 1 to 3 of 3 by ready",
        "TUBE             READY  RESVD  DELAY   BURY   IN/S  OUT/S  TREND  AGE PAUSE SEEN",
        "mail                80      2   1.2M      0    250   25.0  +40.0  75s",
        "bill                 0      0      0      3    0.0    0.0    0.0    -   59m",
        "default              0      0      0      0    0.0    0.0    0.0    -",
    ]


def test_numbers_are_short():
    assert [amount(n) for n in (None, 0, 99_999, 100_000, 1_234_567, 99_960_000, 12e9)] == [
        "-", "0", "99999", "100k", "1.2M", "100M", "12.0G",
    ]  # fmt: skip
    assert [rate(n) for n in (None, 0.0, 0.04, 99.94, 99.96, 123456.0)] == ["-", "0.0", "0.0", "99.9", "100", "123k"]
    assert [growth(n) for n in (None, 0.0, -0.01, 12.0, -12.0)] == ["-", "0.0", "0.0", "+12.0", "-12.0"]
    assert [span(n) for n in (None, 0, 99.9, 100, 5999, 6000, 47 * 3600, 48 * 3600, 86400 * 999)] == [
        "-", "0s", "99s", "1m", "99m", "1h", "47h", "2d", "999d",
    ]  # fmt: skip


@given(st.floats(-1e18, 1e18))
def test_no_number_is_wider_than_its_column(number):
    assert len(amount(number)) <= 6
    assert len(rate(number)) <= 6
    assert len(growth(number)) <= 7


def test_sparklines():
    assert sparkline([0, 1, None, 7], 6) == "  ▁▂ █"
    assert sparkline([0, 0], 2) == "▁▁"
    assert sparkline([], 3) == "   "
    assert sparkline([1, 2, 3], 2, "ab") == "bb"
    assert sparkline([5], 0) == ""


def test_a_narrow_screen_leaves_out_what_is_less_important():
    lines = screen(View(busy()), width=40)
    heading = next(line for line in lines if line.startswith("TUBE"))
    assert heading.split() == ["TUBE", "READY", "RESVD", "DELAY", "BURY"]


def test_a_wide_screen_has_everything():
    lines = screen(View(busy()), width=140)
    assert "READY OVER TIME" in lines[5]
    assert "▅█" in lines[6].replace("▄", "▅")


def test_what_is_old_says_how_old_it_is():
    samples = busy()
    samples.take_tube(60.0, "mail", figures(current_jobs_ready=1))
    lines = screen(View(samples), now=61.0)
    by_name = {line.split()[0]: line.split() for line in lines[6:9]}
    assert "50s" in by_name["bill"]
    assert "50s" not in by_name["mail"]
    assert lines[0].split()[6:8] == ["50s", "ago"]  # and so is the server itself


def test_what_is_wrong_is_told():
    lines = screen(View(busy()), status=Status("a", notice="a: the connection is lost; it is tried again"))
    assert lines[4] == "a: the connection is lost; it is tried again"


def test_before_anything_is_known():
    lines = screen(View(Samples()))
    assert "nothing is known of it yet" in lines[0]
    assert lines[1].startswith("jobs  - ready")
    assert lines[4].startswith("tubes 0 to 0 of 0")


def test_a_terminal_without_utf_8():
    lines = screen(View(busy()), width=140, ascii_only=True)
    assert all(line.isascii() for line in lines)
    assert lines[3].split()[1] == "=#" or lines[3].split()[1][-1] == "#"


def test_a_question_a_message_and_what_is_typed_are_at_the_foot():
    view = View(busy())
    assert screen(view)[-1].startswith("q quit")
    view.message = "mail is resumed"
    assert screen(view)[-1] == "mail is resumed"
    for key in "/ma":
        view.press(key)
    lines = screen(view)
    assert lines[-1].startswith("tubes that begin with: ma_")
    assert lines[4].startswith("tubes 1 to 1 of 1 by ready, beginning with ma")
    view.press("enter")
    view.press("C")
    assert screen(view)[-1].startswith("Delete the 1,234,647 jobs of mail that no one has reserved?")


def test_the_help_fits_on_a_screen_of_24_lines():
    view = View(Samples())
    view.press("?")
    lines = screen(view, height=24)
    assert "any key goes back" in lines[-1]
    assert any("kick" in line for line in lines)
    assert lines[-3].strip().startswith("the same column") or "the same column again reverses the order" in "".join(
        lines
    )


def test_jobs_of_a_tube():
    view = View(busy())
    view.rank()
    view.press("enter")
    assert screen(view)[5] == "they are being fetched"
    jobs = [
        {"id": 3, "state": "ready", "pri": "10", "age": "5", "size": "11", "key": "order-3"},
        {"id": 4, "state": "buried", "pri": "4294967295", "age": "100", "reason": "released"},
        {"id": 5, "state": "delayed"},
    ]
    view.show_jobs(JobsOfTube("mail", 8.0, jobs, {3: b"\x1b[2Jhello\nworld\xff"}))
    lines = screen(view, width=140)
    assert lines[4] == "the first jobs of mail in each state, as they were 3s ago"
    assert lines[6].split()[:4] == ["3", "ready", "10", "5s"]
    assert lines[6].endswith(r"order-3 \x1b[2Jhello\nworld\xff")
    assert lines[7].endswith("(released)")
    view.show_jobs(JobsOfTube("mail", 8.0, error="not found"))
    assert screen(view)[5] == "not found"
    view.show_jobs(JobsOfTube("mail", 8.0, percentiles="waited 1 / 2 / 3 s"))
    assert screen(view)[5] == "waited 1 / 2 / 3 s"
    view.show_jobs(JobsOfTube("mail", 8.0))
    assert screen(view)[6] == "no jobs"


def test_what_a_server_sends_never_steers_the_terminal():
    samples = Samples()
    samples.take_server(1.0, {"version": "\x1b[2J[bold]\x9b1m"})
    samples.take_tube(1.0, "\x1b]0;x\x07[red]", {})
    painted = "".join(paint_of(samples, styled=False))
    assert "\x1b" not in painted
    assert "\x07" not in painted
    assert "\x9b" not in painted
    assert "[bold]" in painted
    assert "[red]" in painted


def paint_of(samples, **arguments):
    view = View(samples)
    view.rank()
    return paint(draw(samples, view, STATUS, (200, 12), 11.0), **arguments)


def test_colours_are_for_terminals_that_want_them():
    plain = paint_of(busy(), styled=False)
    assert "\x1b" not in "".join(plain)
    styled = paint_of(busy(), styled=True, colours=False)
    assert "\x1b[7m" in "".join(styled)  # the selection
    assert not any(f"\x1b[{colour}m" in "".join(styled) for colour in range(30, 48))
    assert "\x1b[31m" in "".join(paint_of(busy(), styled=True))
    assert not any("\n" in line for line in styled)


@settings(max_examples=examples(60))
@given(
    st.integers(0, 200),
    st.integers(0, 40),
    st.sampled_from(list(Mode)),
    st.lists(st.text(min_size=1, max_size=220), max_size=4, unique=True),
    st.booleans(),
)
def test_a_screen_of_any_size_is_filled_and_not_more(width, height, mode, names, ascii_only):
    samples = busy()
    view = View(samples)
    for name in names:
        samples.take_tube(1.0, name, figures(current_jobs_ready=2**63))
    view.rank()
    if mode is Mode.QUESTION:
        view.press("C")
    view.mode = mode
    view.looked_into = names[0] if names else "mail"
    if mode is Mode.JOBS:
        view.show_jobs(
            JobsOfTube(view.looked_into, 1.0, [{"id": 2**64, "state": "ready", "key": name} for name in names])
        )
    lines = draw(samples, view, STATUS, (width, height), 1e9, ascii_only=ascii_only)
    assert len(lines) == max(height, 1)
    assert all(cell_len(line.plain) <= max(width, 1) for line in lines)
    painted = paint(lines, styled=True)
    assert len(painted) == len(lines)
    assert not any("\n" in line for line in painted)
