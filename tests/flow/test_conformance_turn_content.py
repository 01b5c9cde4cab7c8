"""What a turn says and how it is steered, by the numbers of the behaviours that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.errors import BrokenAgent, ModelFailed
from chordage.orchestrator.core.model import AssistantSays, Fault, ToolSays
from chordage.orchestrator.gateways.room.agents import Room
from chordage.orchestrator.plugins.stops import Stops
from support.busy_thread import (
    a_round_then_user_texts,
    answer_with_user_texts,
    in_the_first_call,
    in_the_model_call,
    steer,
    user_texts,
)
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.one_turn import change_agent, play, statuses
from support.world import World


def test_89_limit_of_n_model_rounds_allows_n_then_reports_it_and_keeps_every_step(world: World) -> None:
    change_agent(world, limits=Limits(max_rounds=3))
    play(world, script=rounds_of(2, rounds=10))

    run = world.row("runs")
    assert len(world.models.prompts) == 3 + 1, "three rounds, and the reply that asked for a fourth"
    assert (run["reason"], run["code"]) == ("stopped", "max_rounds")
    assert "3" in run["detail"]
    assert statuses(world).count("succeeded") == 6
    check_all(world.store)


def test_91_token_budget_ends_the_run_after_the_step_that_exceeds_it_and_keeps_that_step(world: World) -> None:
    play(world, Stops(token_budget=10), script=rounds_of(1, rounds=10))

    run = world.row("runs")
    assert (run["reason"], run["code"]) == ("stopped", "token_budget")
    assert run["input_tokens"] + run["output_tokens"] >= 10
    assert set(statuses(world)) == {"succeeded"}
    assert len(world.models.prompts) == 2, "nine tokens a reply: the second crosses it"
    check_all(world.store)


def test_92_a_cost_budget_without_a_price_is_refused_before_any_model_call(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('model = "openai:m"\n[stops]\ncost_budget = 1.0\n')
    with pytest.raises(BrokenAgent, match="agent.toml:3: stops.cost_budget: openai:m has no price"):
        Room(tmp_path).get(None)


def test_96_failure_inside_a_chat_is_shown_in_place_of_the_answer(world: World) -> None:
    def fails(_prompt):
        raise ModelFailed("the provider is down", fault=Fault.SERVER, attempts=())

    world.models.script = fails
    turn = world.submit(reply_target={"url": "https://example.org/answers"})
    world.run_dry()

    row = world.row("turns", id=turn)
    told = world.row("outbox", turn_id=turn)["body"]
    assert (row["disposition"], told["reason"], told["detail"]) == ("failed", "error", "the provider is down")
    assert told["text"] is None


def test_97_summary_never_separates_a_call_from_its_result(world: World) -> None:
    world.models.script = rounds_of(2)
    for number in range(3):
        world.submit(f"message {number}")
        world.run_dry()
    stages.ask_to_compact(world.runtime, "t1")
    world.submit("and now")
    world.run_dry()

    for prompt in world.models.prompts:
        answered = [said.ask_id for said in prompt.said if isinstance(said, ToolSays)]
        asked = [ask.id for said in prompt.said if isinstance(said, AssistantSays) for ask in said.asks]
        assert answered == asked
    check_all(world.store)


def test_99_messages_steered_in_during_a_model_call_reach_the_next_one_in_order(world: World) -> None:
    world.models.script = answer_with_user_texts
    in_the_model_call(world, lambda: [steer(world, text) for text in ("one", "two", "three")])
    world.submit("do it")
    world.run_dry()

    assert user_texts(world.models.prompts[0]) == ["do it"]
    assert user_texts(world.models.prompts[1]) == ["do it", "one", "two", "three"]
    check_all(world.store)


def test_102_message_just_before_the_end_makes_the_run_continue(world: World) -> None:
    world.models.script = lambda prompt: spoken(f"heard {len(user_texts(prompt))}")
    in_the_model_call(world, lambda: steer(world, "one more thing"))
    first = world.submit("do it")
    world.run_dry()

    assert views.turn(world.store, first).answer == "heard 2"
    assert [row["disposition"] for row in world.rows("turns")] == ["answered", "steered"]


def test_104_between_taking_a_message_in_and_taking_it_back_one_wins(world: World) -> None:
    """It is taken back right after the run took it in: too late, and that is said."""
    world.models.script = a_round_then_user_texts
    steered: list[str] = []
    in_the_first_call(world, lambda: steered.append(steer(world, "mind this")))
    in_the_model_call(world, lambda: stages.cancel_turn(world.runtime, steered[0]), number=2)
    world.submit("do it")
    world.run_dry()

    assert [row["disposition"] for row in world.rows("turns")] == ["answered", "steered"]
    assert user_texts(world.models.prompts[-1]) == ["do it", "mind this"]
    check_all(world.store)


def test_107_giving_up_the_wait_for_a_turn_cancels_nothing(world: World) -> None:
    turn = world.submit("do it")
    seen = views.turn(world.store, turn)  # a waiter looks, and goes
    world.run_dry()

    assert seen.disposition is None
    assert views.turn(world.store, turn).disposition == "answered"
