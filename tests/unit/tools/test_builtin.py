"""The tools that come with chordage."""

from __future__ import annotations

import inspect
import sys

import pytest

from chordage import Context
from chordage.orchestrator.gateways.tools import builtin
from chordage.orchestrator.gateways.tools.declare import declared_on


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("(3 + 4) * 2", "14"),
        ("7 // 2 + 7 % 4 - -1", "7"),
        ("2 ** 10 / 4", "256.0"),
        ("sqrt(16) + abs(-1) + round(2.567, 1)", "7.6"),
        (" max(1, 2, 3) * e // 1 ", "8.0"),
        ("round(2.5)", "2"),
    ],
)
def test_arithmetic_is_worked_out(bench, expression, result):
    assert bench.call(builtin.calculate, expression=expression).content == result


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("9 ** 9 ** 9", "the result is too large"),
        ("(9 ** 999) * (9 ** 999) * (9 ** 999) * (9 ** 999)", "the result is too large"),
        ("1 / 0", "division by zero"),
        ("(-1) ** 0.5", "not a finite real number"),
        ("1e308 * 10", "not a finite real number"),
        ("sqrt(-1)", "math domain error"),
        ("round(5, -10 ** 9)", "round takes a whole number of digits"),
        ("10 ** 400 + 0.5", "too large"),
        ("max()", "max"),
        ("1 +", "this is not an expression"),
        ("(" * 300, "this is not an expression"),
        ("__import__('os')", "cannot work out"),
        ("'x' * 3", "cannot work out"),
        ("True", "cannot work out"),
        ("pi.real", "cannot work out"),
        ("1" * 501, "the expression has 501 characters; at most 500"),
    ],
)
def test_invalid_or_too_large_arithmetic_is_refused_with_a_message(bench, expression, why):
    outcome = bench.call(builtin.calculate, expression=expression)
    assert outcome.code == "raised"
    assert outcome.content.startswith("ToolError: ValueError: ")
    assert why in outcome.content


def test_nesting_beyond_the_limit_of_python_is_refused_with_a_message():
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 120)
    try:
        with pytest.raises(ValueError, match="the expression is nested too deeply"):
            builtin.calculate("-" * 400 + "1")
    finally:
        sys.setrecursionlimit(usual)


def test_the_clock_knows_time_zones(bench):
    assert builtin.clock_now().endswith("+00:00")
    outcome = bench.call(builtin.clock_now, timezone="Mars/Base")
    assert (
        outcome.content
        == "ToolError: ValueError: there is no time zone 'Mars/Base'; write it like Europe/Berlin, or UTC"
    )


@pytest.mark.parametrize("zone", ["", "../../etc/passwd", "Europe", "/etc/localtime"])
def test_a_time_zone_is_a_name_and_not_a_path(bench, zone):
    assert "there is no time zone" in bench.call(builtin.clock_now, timezone=zone).content


def test_sleep_reports_and_takes_no_negative_time(bench):
    assert bench.call(builtin.sleep, seconds=0).content == "slept 0 s"
    assert bench.notes == ["0% asleep"]
    assert bench.call(builtin.sleep, seconds=-1).code == "invalid_arguments"


def test_words_are_counted(bench):
    assert bench.call(builtin.word_count, text="one two\nthree").content == '{"words":3,"lines":2,"characters":13}'


def test_private_addresses_are_refused(bench):
    outcome = bench.call(builtin.http_get, url="http://127.0.0.1:9/")
    assert outcome.content == "ToolError: NotPublic: 127.0.0.1 is not a public address"


def test_all_of_them_are_pure_and_described():
    functions = [builtin.clock_now, builtin.calculate, builtin.sleep, builtin.word_count, builtin.http_get]
    for spec in (declared_on(function).spec for function in functions):
        assert spec.effect == "pure"
        assert spec.description
        assert all(inner.get("description") for inner in spec.schema["properties"].values())


def test_a_builtin_is_still_a_function():
    assert builtin.calculate("1 + 1") == 2
    assert builtin.http_get.__name__ == "http_get"
    assert Context in builtin.sleep.__globals__.values()
