"""Where the calls of a round run: a table of rounds, and rules that hold for any round."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import AgentSpec, Effect, Placement, ToolSpec
from chordage.orchestrator.core.placement import (
    MESSAGE,
    STAY,
    Bar,
    Duration,
    PlacedCall,
    RoundPlan,
    noted,
    place,
    wish_for,
)

SHORT = 0.0002


def call(name: str, ms: float | None = None, effect: str = "pure", wish: str = "auto", bar: Bar | None = None) -> Any:
    duration = None if ms is None else Duration(mean=ms / 1000, last=ms / 1000)
    return PlacedCall(id=name, effect=Effect(effect), wish=Placement(wish), duration=duration, bar=bar)


def placed(*calls: PlacedCall, at_once: int | None = None) -> tuple[str, list[str]]:
    """The calls that stay, and the batches, as texts, each in the order of the round."""
    plan = place(calls, at_once)
    assert set(plan.why) == {each.id for each in calls}
    return "".join(plan.here), ["".join(batch) for batch in plan.batches]


ROUNDS: dict[str, tuple[list[PlacedCall], tuple[str, list[str]]]] = {
    "never measured": ([call("a"), call("b")], ("", ["a", "b"])),
    "short and pure": ([call("a", 0.2), call("b", 0.2)], ("ab", [])),
    "short and idempotent": ([call("a", 0.2, "idempotent")], ("a", [])),
    "unsafe": ([call("a", 0.2, "unsafe"), call("b", 0.2, "reconcilable")], ("", ["a", "b"])),
    "longer than a message": ([call("a", 100), call("b", 100)], ("", ["a", "b"])),
    "a short one beside a long one": ([call("a", 100), call("b", 0.2)], ("b", ["a"])),
    "long ones share where the longest is no longer for it": (
        [call("a", 100), call("b", 40), call("c", 30), call("d", 60)], ("", ["a", "bd", "c"]),
    ),
    "short ones that may not stay share": (
        [call("a", 1, bar=Bar.REMOTE), call("b", 1, bar=Bar.REMOTE), call("c", 1, bar=Bar.PLUGIN)], ("", ["abc"]),
    ),
    "more than fits": ([call(name, 2.9) for name in "abcdefghij"], ("abcdefgh", ["ij"])),
    "set for all": ([call("a", 500, "unsafe", "here"), call("b", wish="here")], ("ab", [])),
    "set together": ([call(name, wish="together") for name in "abcd"], ("", ["abcd"])),
    "set together, but long": ([call(name, 100, wish="together") for name in "ab"], ("", ["a", "b"])),
    "set spread": ([call(name, 0.2, wish="spread") for name in "ab"], ("", ["a", "b"])),
    "set here and spread": ([call("a", 0.2, wish="spread"), call("b", 90, wish="here")], ("b", ["a"])),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDS)
def test_round_is_placed_by_what_is_known_of_its_tools(name: str) -> None:
    calls, expected = ROUNDS[name]

    assert placed(*calls) == expected


def test_cap_on_calls_at_once_counts_those_that_stay_as_one() -> None:
    assert placed(*(call(name) for name in "abcde"), at_once=2) == ("", ["ace", "bd"])
    assert placed(call("a", 0.2), call("b"), call("c"), at_once=2) == ("a", ["bc"])
    assert placed(call("a", 0.2), call("b"), at_once=1) == ("", ["ab"])


def test_reason_names_the_place_first() -> None:
    why = place([call("a", 0.2), call("b"), call("c", 9), call("d", 1, "unsafe"), call("e", wish="together")]).why

    assert list(why.values()) == [
        "here: takes 0.2 ms", "spread: not measured yet", "together: takes 9.0 ms", "spread: unsafe",
        "together: as set",
    ]  # fmt: skip


def test_tool_that_overstayed_loses_the_privilege_until_it_is_short_again() -> None:
    known = noted(None, SHORT)
    assert known.is_short

    known = noted(known, 2 * STAY)
    assert not known.is_short

    calls = 0
    while not known.is_short:
        known = noted(known, SHORT)
        calls += 1
    assert 1 < calls < 20


def test_small_change_of_a_duration_is_not_worth_a_word() -> None:
    known = Duration(mean=SHORT, last=SHORT)

    assert known.differs_from(None)
    assert not Duration(mean=2 * SHORT, last=SHORT).differs_from(known)
    assert Duration(mean=MESSAGE, last=SHORT).differs_from(known)
    assert not Duration(mean=1.1, last=1.1).differs_from(Duration(mean=1.0, last=1.0))


def test_file_about_a_tool_wins_over_the_tool_and_the_tool_over_the_file_about_all() -> None:
    agent = AgentSpec(
        name="ada", model="m", placement=Placement.TOGETHER,
        placements={"named": Placement.HERE, "left": Placement.AUTO},
    )  # fmt: skip

    def wish(tool: str, own: Placement = Placement.AUTO) -> Placement:
        return wish_for(agent, tool, ToolSpec(name=tool, description="", schema={}, placement=own))

    assert wish("named", Placement.SPREAD) is Placement.HERE
    assert wish("other", Placement.SPREAD) is Placement.SPREAD
    assert wish("left") is Placement.TOGETHER
    assert wish_for(agent, "gone", None) is Placement.TOGETHER


CALLS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(0, 200)), st.sampled_from(list(Effect)), st.sampled_from(list(Placement)),
        st.sampled_from([None, *Bar]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(drawn=CALLS, at_once=st.one_of(st.none(), st.integers(1, 6)))
def test_any_round_is_placed_whole_within_its_bounds(drawn: Any, at_once: int | None) -> None:
    calls = [call(f"c{number}", ms, effect, wish, bar) for number, (ms, effect, wish, bar) in enumerate(drawn)]
    by_id = {each.id: each for each in calls}

    plan = place(calls, at_once)

    assert sorted([*plan.here, *(one for batch in plan.batches for one in batch)]) == sorted(by_id), "each once"
    assert all(plan.batches), "no message without a call"
    assert at_once is None or len(plan.batches) + bool(plan.here) <= at_once
    by_itself = [by_id[one] for one in plan.here if by_id[one].wish is Placement.AUTO]
    assert all(one.effect in {"pure", "idempotent"} and one.bar is None for one in by_itself)
    assert sum(one.duration.mean for one in by_itself) <= STAY
    if at_once is None:
        assert not _shares_unasked(plan, by_id)


def _shares_unasked(plan: RoundPlan, by_id: dict[str, PlacedCall]) -> list[tuple[str, ...]]:
    """Batches with a call that may take any time, or must be alone."""
    return [
        batch for batch in plan.batches
        if len(batch) > 1 and any(
            one.wish is Placement.SPREAD or (one.wish is Placement.AUTO and one.duration is None)
            for one in (by_id[name] for name in batch)
        )
    ]  # fmt: skip
