"""Which lines a log has at INFO, in both formats: an ended turn, and no tick."""

from __future__ import annotations

import json
import logging
import sys
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


@pytest.mark.parametrize(
    "address",
    [
        "/console/login?link=5ecret_token-1",
        "/console/login?next=%2F&link=5ecret",
        "/console/ask/5ecret.Dot_part",
        "/turns/7/events?after=0-0&ticket=5ecret",
        "/turns?key=ck_7_5ecret_1",
        "/turns?x-api-key=5ecret&limit=2",
        "/v1/models/ck_7_5ecret_crc",
    ],
)
@pytest.mark.parametrize("style", ["json", "text"])
def test_log_of_requests_has_no_secret_of_an_address(address, style, capsys) -> None:
    log.configure("INFO", style)
    of_uvicorn = logging.StreamHandler(sys.stdout)
    logging.getLogger("uvicorn.access").addHandler(of_uvicorn)
    try:
        logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", address, "1.1", 303)
    finally:
        logging.getLogger("uvicorn.access").removeHandler(of_uvicorn)
    structlog.get_logger().error("a page failed", path=address)

    written = capsys.readouterr()
    assert (written.out + written.err).count(address[:8]) == 3
    assert "5ecret" not in written.out + written.err


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("/console/runs?q=order 17&before=2026-11-20", "/console/runs?q=…&before=…"),
        ("/console/suggest?text%3Asecret=1&b=secret?c=d", "/console/suggest?…&b=…"),
        ("/console/runs?secret%20text", "/console/runs?…"),
        ("/console/runs", "/console/runs"),
    ],
)
def test_log_of_requests_names_the_parameters_of_a_query_and_no_value(address, written, capsys) -> None:
    log.configure("INFO", "json")
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", address, "1.1", 200)

    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == f'127.0.0.1:1 - "GET {written} HTTP/1.1" 200'


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
