"""Tasks in a project with Django: its setup, and its database connections."""

import contextlib

import django
import pytest
from beanstalk_client.integrations.django_project import FreshConnections
from beanstalk_client.worker.command import main
from django.db import connection

django.setup()


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_connections_that_are_too_old_are_closed_before_and_after_a_call(error, monkeypatch):
    told = []
    monkeypatch.setattr(connection, "close_if_unusable_or_obsolete", lambda: told.append("closed"))
    with contextlib.suppress(ZeroDivisionError), FreshConnections().calling(None):
        told.append("called")
        if error is not None:
            raise error
    assert told == ["closed", "called", "closed"]


def test_settings_that_cannot_be_loaded_are_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no_settings")
    monkeypatch.setattr(django, "setup", lambda: __import__("no_settings"))  # the settings of the tests are loaded
    assert main(["shop:tasks"]) == 2
    told = "beanstalk-worker: DJANGO_SETTINGS_MODULE=no_settings: ModuleNotFoundError: No module named 'no_settings'"
    error = capsys.readouterr().err
    assert error.startswith(told)
    assert error.count("\n") == 1
