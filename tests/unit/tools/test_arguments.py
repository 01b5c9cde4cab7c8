"""Arguments as a model sends them: checked, coerced as JSON allows, and refused in words."""

from __future__ import annotations

import contextlib
from datetime import date
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chordage import tool
from chordage.orchestrator.gateways.tools.arguments import Arguments, InvalidArguments
from chordage.orchestrator.gateways.tools.signature import MISSING, Parameter
from chordage.orchestrator.system import user_code


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    item: str
    count: int


class StrictDay(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


@tool
def buy(order: Order, express: bool = False) -> str:
    return f"{order.count} {order.item} {express}"


def test_a_number_in_a_string_is_taken_for_a_number(bench):
    assert bench.complaints(buy, order={"item": "x", "count": "5"}) is None
    assert bench.call(buy, order={"item": "x", "count": "5"}).content == "5 x False"


def test_every_wrong_field_is_listed_with_what_is_wrong(bench):
    said = bench.complaints(buy, order={"count": "many", "colour": "red"}, expres=True)
    assert said.splitlines() == [
        "buy was not run, because its arguments do not fit:",
        "- order.item: is missing",
        "- order.count: Input should be a valid integer, unable to parse string as an integer; got 'many'",
        "- order.colour: is not allowed here",
        "- expres: there is no such parameter; there are: order, express",
    ]


def test_wrong_arguments_are_an_outcome_and_the_function_does_not_run(bench):
    @tool
    def explode(fuse: int) -> None:
        raise AssertionError

    outcome = bench.call(explode, fuse="long")
    assert outcome.code == "invalid_arguments"
    assert outcome.content == bench.complaints(explode, fuse="long")


def test_thousand_mistakes_are_reported_in_twenty_lines(bench):
    @tool
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    lines = bench.complaints(add, numbers=["x"] * 1000).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "- and 980 more"


def test_a_long_wrong_value_is_shortened(bench):
    @tool
    def add(number: int) -> int:
        return number

    assert len(bench.complaints(add, number="x" * 5000)) < 300


def test_failing_validator_is_reported_and_does_not_escape(bench):
    def broken(value: int) -> int:
        return value // 0

    @tool
    def add(number: Annotated[int, AfterValidator(broken)]) -> int:
        return number

    assert "they cannot be checked: ZeroDivisionError" in bench.complaints(add, number=1)


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_validator_that_would_end_the_process_is_reported_and_does_not_escape(bench, leaving):
    def leave(value: int) -> int:
        raise leaving(value)

    @tool
    def add(number: Annotated[int, AfterValidator(leave)]) -> int:
        return number

    assert f"they cannot be checked: ExitAttempted: {leaving.__name__}(1)" in bench.complaints(add, number=1)


class Mine(int):
    """Made by its own code."""


PLAIN = [
    str, int | None, list[str], dict[str, Any], Literal["a", "b"], Annotated[str, "what to look for"],
    Annotated[int, Field(description="how many")],
]  # fmt: skip
THEIRS = [
    Order, list[Order], Annotated[int, AfterValidator(abs)], Annotated[str, Field(default_factory=str)],
    Annotated[int, Field(ge=1)], list[Annotated[int, AfterValidator(abs)]], date, Annotated[int | None, Mine()],
]  # fmt: skip


def is_called_as_users_code(monkeypatch, parameter) -> bool:
    calls = []
    monkeypatch.setattr(user_code, "call", lambda check: calls.append(check) or check())
    arguments = Arguments((parameter,), {}, "here")
    with contextlib.suppress(InvalidArguments):
        arguments.fit({})
    return bool(calls)


@pytest.mark.parametrize(
    ("annotation", "is_theirs"), [*((plain, False) for plain in PLAIN), *((theirs, True) for theirs in THEIRS)], ids=str
)
def test_check_that_may_run_users_code_is_guarded_and_others_cost_no_thread(monkeypatch, annotation, is_theirs):
    parameter = Parameter(name="x", annotation=annotation, default=MISSING)
    assert is_called_as_users_code(monkeypatch, parameter) is is_theirs


def test_default_that_users_code_makes_is_guarded(monkeypatch):
    assert is_called_as_users_code(monkeypatch, Parameter(name="x", annotation=str, default=Field(default_factory=str)))
    assert not is_called_as_users_code(monkeypatch, Parameter(name="x", annotation=str, default="y"))


def test_arguments_are_judged_as_json_even_by_a_strict_model(bench):
    @tool
    def plan(when: StrictDay) -> str:
        return when.day.isoformat()

    assert bench.call(plan, when={"day": "2026-03-01"}).content == "2026-03-01"


def test_half_a_surrogate_is_refused_and_does_not_escape(bench):
    @tool
    def say(text: str) -> str:
        return text

    assert "Invalid JSON" in bench.complaints(say, text="\ud800")


ANY_AGENT = SimpleNamespace(pinned_tools=None)


def test_an_unknown_tool_is_named_with_its_neighbours(bench):
    order = bench.order(buy)
    box = bench.box()
    outcome = box.run(ANY_AGENT, order, abort=bench.calm, on_progress=print)
    assert (outcome.code, outcome.content) == ("unknown_tool", "There is no tool 'buy'. The tools are: none.")
    assert "Did you mean buy?" in bench.box(buy).invalid(ANY_AGENT, "buyy", {})


NUMBERS = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9)
SIMPLE = {
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    list[int]: st.lists(st.integers(-99, 99)),
    dict[str, bool]: st.dictionaries(st.text(), st.booleans()),
    str | None: st.text() | st.none(),
    int | list[str]: st.integers(-99, 99) | st.lists(st.text()),
}
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
SIGNATURES = st.dictionaries(NAMES, st.tuples(st.sampled_from(list(SIMPLE)), st.booleans()), min_size=1, max_size=4)


def arguments_for(signature):
    parameters = [
        Parameter(name=name, annotation=kind, default=None if optional else MISSING)
        for name, (kind, optional) in signature.items()
    ]
    return Arguments(tuple(parameters), {}, "here")


def fits(arguments, values):
    try:
        arguments.fit(values)
    except InvalidArguments:
        return False
    return True


@given(signature=SIGNATURES, data=st.data())
def test_values_of_the_right_type_pass_schema_and_validator(signature, data):
    arguments = arguments_for(signature)
    values = {name: data.draw(SIMPLE[kind]) for name, (kind, optional) in signature.items()}
    jsonschema.validate(values, arguments.schema)
    assert arguments.fit(values) == values


@given(signature=SIGNATURES, data=st.data())
def test_whatever_the_schema_accepts_the_validator_accepts(signature, data):
    arguments = arguments_for(signature)
    drawn = {name: data.draw(JSON | SIMPLE[kind]) for name, (kind, optional) in signature.items()}
    values = {name: value for name, value in drawn.items() if data.draw(st.booleans())}
    if jsonschema.Draft202012Validator(arguments.schema).is_valid(values):
        assert fits(arguments, values)


@given(signature=SIGNATURES, extra=NAMES)
def test_a_parameter_that_is_not_there_fails_both(signature, extra):
    arguments = arguments_for({**signature, extra: (int, False)})
    smaller = arguments_for({name: signature[name] for name in signature if name != extra} or {"other": (int, True)})
    assert not jsonschema.Draft202012Validator(smaller.schema).is_valid({extra: 1})
    assert not fits(smaller, {extra: 1})
    assert extra in arguments.schema["properties"]
