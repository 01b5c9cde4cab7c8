"""What a simulation found, on a terminal of the usual width."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest

from chordage.orchestrator.core.groups import Group
from chordage.workers.simulate import report
from chordage.workers.simulate.command import run_simulation
from chordage.workers.simulate.result import Spread
from chordage.workers.simulate.scenario import DatabaseSpeed, MessageSource, Scenario

LONG = Spread(count=1_000_000, p50=119.0, p95=119.0, p99=119.0, longest=119.0)


@pytest.fixture(scope="module")
def found():
    source = MessageSource(
        name="a", group="chore", pattern="burst", burst=2, per_second=0.2, model_seconds=1, spread="fixed"
    )
    plan = Scenario(sources=(source,), seconds=10, database=DatabaseSpeed(commit_ms=1))
    outcome = run_simulation(plan, database=None, progress=lambda _now, _done: None)
    (group,) = outcome.groups
    ways = {"answered": 1_000_000, "expired": 2_000_000, "superseded": 3_000_000, "merged": 4_000_000, "queued": 5}
    large = replace(
        group, group=Group.CHORE, budget=1000, came=10**7, ways=ways, until_started=LONG, until_asked=LONG,
        until_done=LONG,
    )  # fmt: skip
    return replace(outcome, groups=[large])


def shown(found, monkeypatch, capsys, width):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    report.show(found)
    return click.unstyle(capsys.readouterr().out).replace(report.BLANK, " ")


def test_at_eighty_columns_no_figure_is_cut_and_no_column_left_out(found, monkeypatch, capsys):
    told = shown(found, monkeypatch, capsys, 80)

    assert all(len(line) <= 80 for line in told.splitlines())
    assert "…" not in told
    (waits,) = (line.split() for line in told.splitlines() if line.startswith("chore") and "119 s" in line)
    assert waits == ["chore", "1000", *["119", "s"] * 7]
    for how in ("answered 1,000,000", "expired 2,000,000", "superseded 3,000,000", "merged 4,000,000"):
        assert all(word in told for word in how.split())


def test_on_a_wide_terminal_headings_take_one_line(found, monkeypatch, capsys):
    told = shown(found, monkeypatch, capsys, 160)
    heading = next(line for line in told.splitlines() if line.startswith("group"))

    assert heading.split() == [
        "group", "budget", "started", "p50", "p95", "p99", "longest", "first", "call", "p95", "done", "p50", "p95",
    ]  # fmt: skip
