"""What a tool returned, as the model reads it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from itertools import count

import pytest
from pydantic import BaseModel, field_serializer

from chordage import tool
from chordage.orchestrator.gateways.tools import outcomes


class Price(BaseModel):
    amount: float


@dataclass
class Pair:
    one: int
    two: Price


class Loud(StrEnum):
    YES = "yes"


class Old(str, Enum):  # noqa: UP042 - people have these
    YES = "yes"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "null"),
        (True, "true"),
        (7, "7"),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        ((1, 2), "[1,2]"),
        (Pair(one=1, two=Price(amount=2.5)), '{"one":1,"two":{"amount":2.5}}'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        (float("nan"), '"NaN"'),
        (Loud.YES, "yes"),
        (Old.YES, "yes"),
    ],
)
def test_strings_stay_and_everything_else_becomes_json(value, text):
    assert outcomes.as_text(value) == text


def test_what_no_database_takes_is_replaced():
    assert outcomes.as_text("a\0b") == "a\ufffdb"
    assert outcomes.as_text("ü\0\ud800") == "ü\ufffd?"
    outcomes.as_text(["\0"]).encode()


def loop():
    inner: list = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: b"raw", "it returned bytes; decode them, or encode them as base64 text"),
        (lambda: memoryview(b"raw"), "it returned bytes"),
        (lambda: {"inside": b"\xff"}, "it returned a dict that is not JSON"),
        (object, "it returned a object that is not JSON"),
        (lambda: (n for n in count()), "it returned a generator; return a list of what is in it"),
        (loop, "it returned a list that is not JSON"),
    ],
)
def test_outcome_that_is_not_json_is_reported(bench, make, why):
    @tool
    def make_it() -> object:
        return make()

    outcome = bench.call(make_it)
    assert outcome.code == "result_not_json"
    assert outcome.content.startswith("ToolError: make_it ran, but its result cannot be shown: ")
    assert why in outcome.content


def test_a_result_at_the_limit_is_shown_whole(bench):
    @tool(result_limit=5)
    def say() -> str:
        return "12345"

    outcome = bench.call(say)
    assert (outcome.content, outcome.full) == ("12345", None)


def test_a_result_over_the_limit_is_previewed_and_kept(bench):
    @tool(result_limit=5)
    def say() -> str:
        return "123456789"

    outcome = bench.call(say)
    note = "The whole result is kept as call:call-1; read_result reads it in parts]"
    assert outcome.ok
    assert outcome.full == "123456789"
    assert outcome.content.splitlines() == ["12345", f"[These are the first 5 of 9 characters. {note}"]


def test_a_result_that_is_slow_to_write_down_runs_into_the_timeout(bench):
    release = threading.Event()

    class Slow(BaseModel):
        number: int

        @field_serializer("number")
        def wait(self, number: int) -> int:
            release.wait(60)
            return number

    @tool(timeout=0.1)
    def numbers() -> Slow:
        return Slow(number=1)

    assert bench.call(numbers).code == "timeout"
    release.set()
