"""Which lines a log has at INFO, in both formats: an ended turn, and no tick."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import structlog

from chordage.config import log
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.run import unit
from chordage.orchestrator.run.unit import TurnDropped, Unit
from chordage.testing.fakes import RecordingEvents


@pytest.fixture(autouse=True)
def as_it_was():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in log.QUIET}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()


def test_beat_logs_nothing_of_the_ticks_it_sends(capsys) -> None:
    log.configure("INFO", "text")
    logging.getLogger("celery.beat").info("Scheduler: Sending due task %s (%s)", "rescue", "system.rescue")
    logging.getLogger("celery.beat").error("Message Error")

    told = capsys.readouterr().err
    assert "due task" not in told
    assert "Message Error" in told


def test_at_debug_it_does(capsys) -> None:
    log.configure("DEBUG", "text")
    logging.getLogger("celery.beat").setLevel(logging.NOTSET)
    logging.getLogger("celery.beat").info("Scheduler: Sending due task")

    assert "due task" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["json", "text"])
def test_the_line_of_an_ended_turn_has_its_ids_in_both_formats(style, capsys, monkeypatch) -> None:
    log.configure("INFO", style)
    monkeypatch.setattr(unit, "log", structlog.get_logger())
    with Unit(SimpleNamespace(now=lambda: None, events=RecordingEvents()), nullcontext) as of_turn:
        of_turn.announce(TurnDropped(turn_id="turn-1", disposition=Disposition.EXPIRED))

    (line,) = capsys.readouterr().err.splitlines()
    if style == "json":
        told = json.loads(line)
        assert (told["event"], told["turn"], told["disposition"], told["level"]) == (
            "turn ended", "turn-1", "expired", "info",
        )  # fmt: skip
    else:
        assert "turn ended" in line
        assert "turn=turn-1" in line
        assert "disposition=expired" in line
