"""The log of this package's programs: what a line of JSON has, and how a program says why it ends."""

import argparse
import json
import logging
import re

import pytest
from beanstalk_client.events import tell
from beanstalk_client.logs import JsonFormatter, complain


def test_lines_for_programs():
    records = []
    log = logging.getLogger("a.log.of.its.own")
    log.addFilter(lambda record: records.append(record) or False)
    tell(log, logging.ERROR, "delivery-buried", "job 7: größer\n\x1b[31mals", job=7, seconds=0.5, kind="status")
    (record,) = records
    line = JsonFormatter().format(record)
    found = json.loads(line)
    assert line.isascii() and "\n" not in line
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {
        "level": "error",
        "event": "delivery-buried",
        "message": r"job 7: größer\n\x1b[31mals",
        "job": 7,
        "seconds": 0.5,
        "kind": "status",
    }


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_why_a_program_ends_is_a_line_of_its_log(log_format, capsys, caplog):
    options = argparse.Namespace(log_format=log_format)
    assert complain(options, "beanstalk-worker", "no module shop", 2) == 2
    said = capsys.readouterr().err
    if log_format == "text":
        assert said == "beanstalk-worker: no module shop\n" and not caplog.records
    else:
        line = json.loads(JsonFormatter().format(caplog.records[0]))
        assert said == "" and (line["event"], line["program"], line["status"]) == (
            "program-failed",
            "beanstalk-worker",
            2,
        )
