"""A task that meets a service that is away: one line in the log, and no traceback."""

from __future__ import annotations

import logging

import pytest
from celery import Celery
from structlog.testing import capture_logs

from chordage.orchestrator.core.errors import Unavailable
from chordage.tasks.tasks import StageTask


@pytest.mark.parametrize(("error", "is_expected"), [(Unavailable("the database is locked"), True), (OSError(), False)])
def test_what_is_away_is_one_line_and_a_fault_of_ours_is_a_traceback(caplog, error, is_expected):
    app = Celery("test", set_as_current=False)

    @app.task(base=StageTask, name="x", shared=False)
    def task():
        raise error

    with capture_logs() as lines, caplog.at_level(logging.INFO, logger="celery.app.trace"):
        task.apply()

    of_celery = [record for record in caplog.records if record.name == "celery.app.trace"]
    assert [bool(record.exc_info) for record in of_celery] == [not is_expected]
    told = [line for line in lines if line["event"] == "a service does not answer; the work is sent again"]
    assert [(line["log_level"], line["error"]) for line in told] == [("warning", str(error))] * is_expected
    app.close()
