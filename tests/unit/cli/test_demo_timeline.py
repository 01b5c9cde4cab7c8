"""The bars of the demonstration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from chordage.workers.demo import show
from chordage.workers.demo.play import WorkSpan

START = datetime(2026, 1, 1, tzinfo=UTC)


def part(begin, end):
    times = {"started": START + timedelta(seconds=begin), "ended": START + timedelta(seconds=end)}
    return WorkSpan(what="x", member="m", worker="h:1", status="succeeded", **times)


@pytest.mark.parametrize(
    ("begin", "end", "drawn"),
    [(0, 2, "━━━━━━━━"), (0, 1, "━━━━    "), (1, 2, "    ━━━━"), (0.5, 0.5, "  ━     "), (2, 2, "       ━")],
)
def test_bar_is_at_its_time_and_never_empty(begin, end, drawn):
    assert show.bar(part(begin, end), START, 2.0, 8) == drawn


def test_axis_marks_half_seconds_where_there_are_few_and_whole_ones_otherwise():
    assert show.axis(1.0, 12).split() == ["0s", "0.5s", "1s"]
    assert show.axis(4.0, 20).split() == ["0s", "1s", "2s", "3s", "4s"]


def test_span_reaches_from_the_first_start_to_the_last_end():
    parts = [part(1, 2), part(0.5, 1), part(0.75, 3)]

    start, seconds = show.span(parts)

    assert (start, seconds) == (START + timedelta(seconds=0.5), 2.5)
    assert show.sum_of(parts) == 3.75
