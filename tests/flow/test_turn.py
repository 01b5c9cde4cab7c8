"""A whole turn, front to back, when nothing goes wrong."""

from __future__ import annotations

from chordage.orchestrator.core.agent import AgentSpec, Limits
from chordage.orchestrator.core.model import Reply, StopReason, ToolAsk, ToolSays
from support.fakes import asking, rounds_of, spoken
from support.invariants import check_all
from support.world import World


def test_turn_is_answered_with_the_results_in_the_models_order(world: World) -> None:
    world.models.script = rounds_of(4)
    turn = world.submit("hello")

    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.rows("journal")[-2]["body"]["text"] == "done: hello [pure0 pure1 pure2 pure3]"
    assert world.events.done == [turn]
    check_all(world.store)


def test_checkpoints_have_their_canonical_order(world: World) -> None:
    world.models.script = rounds_of(1, rounds=2)
    world.submit()

    world.run_dry()

    round_ = ["AssistantTurnCommitted", "ToolResultsCommitted"]
    expected = ["UserMessage", *round_, *round_, "AssistantTurnCommitted", "RunFinished"]
    assert [entry["kind"] for entry in world.rows("journal")] == expected


def test_write_commits_of_a_turn_are_three_and_one_more_a_reply_and_a_call(world: World) -> None:
    rounds, width = 3, 4
    world.models.script = rounds_of(width, rounds)
    world.submit()

    world.run_dry()

    assert world.commits <= 3 + rounds * (1 + width)


def test_results_of_failed_calls_reach_the_model_as_errors_and_the_run_continues(world: World) -> None:
    replies = iter([asking(("nobody", {}), ("pure", {"n": "x"}), ("pure", {"n": 1})), spoken("ok")])
    world.models.script = lambda prompt: next(replies)
    world.submit()

    world.run_dry()

    answers = [said for said in world.models.prompts[-1].said if isinstance(said, ToolSays)]
    assert [(a.is_error, a.content.split(".")[0]) for a in answers] == [
        (True, "There is no tool 'nobody'"),
        (True, "n: must be a number"),
        (False, "pure1"),
    ]
    assert [call["code"] for call in world.rows("calls")] == ["unknown_tool", "invalid_arguments", None]


def test_a_round_without_a_runnable_call_needs_no_tool_worker(world: World) -> None:
    replies = iter([asking(("nobody", {})), spoken("sorry")])
    world.models.script = lambda prompt: next(replies)
    turn = world.submit()

    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.ran == {}


def test_direct_makes_one_call_and_offers_no_tools(world: World) -> None:
    world.models.script = lambda prompt: spoken("plain")
    world.submit(strategy="direct")

    world.run_dry()

    (prompt,) = world.models.prompts
    assert prompt.offers == ()


def test_a_reply_that_was_cut_is_closed_and_its_calls_are_not_run(world: World) -> None:
    ask = ToolAsk(id="a", name="unsafe", arguments={})
    world.models.script = lambda prompt: Reply(text="half", asks=(ask,), stop=StopReason.MAX_TOKENS, model="fake")
    world.submit()

    world.run_dry()

    assert world.row("calls")["status"] == "cancelled"
    assert world.row("runs")["code"] == "max_tokens"
    assert world.tools.ran == {}


def test_pause_turn_is_sent_back_unchanged(world: World) -> None:
    paused = Reply(text="thinking", asks=(), stop=StopReason.PAUSE_TURN, model="fake", extra={"blocks": [1]})
    replies = iter([paused, spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit()

    world.run_dry()

    assert world.models.prompts[-1].said[-1].extra == {"blocks": [1]}
    assert world.row("runs")["reason"] == "natural_end"


def test_limit_of_rounds_stops_the_run_before_a_round_that_would_not_be_read(world: World) -> None:
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", limits=Limits(max_rounds=2))
    world.models.script = rounds_of(1, rounds=99)
    world.submit()

    world.run_dry()

    assert (world.row("runs")["reason"], world.row("runs")["code"]) == ("stopped", "max_rounds")
    assert world.tools.finished.total() == 2


def test_a_call_id_that_the_provider_uses_again_starts_a_new_generation(world: World) -> None:
    replies = iter([asking(("pure", {}), ids=("same",)), asking(("pure", {}), ids=("same",)), spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit()

    world.run_dry()

    assert [(call["ask_id"], call["generation"]) for call in world.rows("calls")] == [("same", 1), ("same", 2)]
    assert world.tools.ran.total() == len(world.tools.ran) == 2


def test_calls_without_an_id_or_with_one_id_twice_get_ids_of_their_own(world: World) -> None:
    replies = iter([asking(("pure", {}), ("pure", {}), ("pure", {}), ids=("", "x", "x")), spoken("done")])
    world.models.script = lambda prompt: next(replies)
    world.submit()

    world.run_dry()

    assert len({call["ask_id"] for call in world.rows("calls")}) == 3
    check_all(world.store)


def test_concurrency_caps_how_many_calls_of_a_round_are_out_at_once(world: World) -> None:
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", concurrency=2)
    world.models.script = rounds_of(5)
    world.submit()
    while not (fan := [intent for intent in world.pending if hasattr(intent, "batches")]):
        world.deliver(world.pending.pop(0))

    assert [len(batch) for batch in fan[0].batches] == [3, 2]
    world.run_dry()
    assert world.rows("journal")[-2]["body"]["text"] == "done: hi [pure0 pure1 pure2 pure3 pure4]"


def test_thread_remembers_earlier_turns(world: World) -> None:
    world.models.script = lambda prompt: spoken(f"heard {len(prompt.said)}")
    for text in ("one", "two"):
        world.submit(text)
        world.run_dry()

    assert [said.text for said in world.models.prompts[-1].said] == ["one", "heard 1", "two"]
