"""Compaction in the engine: at the threshold and on request, as a step of its own, never across what is open."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import PlanSpec
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.message import WhenBusy
from chordage.orchestrator.core.model import AssistantSays, StopReason, ToolSays, UserSays
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.plugin_state import SetState
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.transcript import AWAITING, DECIDED
from chordage.orchestrator.store import journal
from chordage.workers.cli.show import run_lines
from support.explaining import explained
from support.fakes import spoken
from support.hooks import install, plugin_for
from support.invariants import check_all
from support.one_turn import change_agent, kinds
from support.planning import planner_request
from support.questions import approve, asks_once
from support.summing import ASKS, FITS, failures, is_for_summary, last_prompt, rounds, summaries, summing, talk, texts


def compact(world, thread="t1"):
    stages.ask_to_compact(world.runtime, thread)


@pytest.mark.parametrize(("threshold", "times"), [(FITS, 1), (FITS + 1, 0), (None, 0)])
def test_at_the_threshold_the_older_part_is_summarised_before_the_next_reply(world, threshold, times):
    summing(world, lambda prompt: spoken("aye"), threshold=threshold)
    talk(world, "first")
    talk(world, "second")

    assert len(summaries(world)) == times
    assert last_prompt(world) == (["summary 1", "second"] if times else ["first", "aye", "second"])
    check_all(world.store)


def test_the_summary_is_a_step_of_the_run_with_its_cost(world):
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "first")
    turn = talk(world, "second")

    (body,) = summaries(world)
    said = world.rows("journal", run_id=turn["run_id"])
    run = world.row("runs", id=turn["run_id"])
    assert [(row["step"], row["kind"]) for row in said] == [
        (0, "UserMessage"), (1, "HistoryCompacted"), (2, "AssistantTurnCommitted"), (2, "RunFinished"),
    ]  # fmt: skip
    assert (run["input_tokens"], run["output_tokens"], run["rounds"]) == (6, 4, 0)
    assert (body["upto"], body["entries"], body["cause"]) == (world.rows("journal")[1]["id"], 2, "threshold")


def test_summary_request_contains_the_part_without_tools_and_the_agents_own_prompt(world):
    change_agent(world, instructions="You are Ada.", params={"max_tokens": 3})
    summing(world, rounds(1), threshold=FITS)
    talk(world, "first")
    talk(world, "second")

    (asked,) = [prompt for prompt in world.models.prompts if is_for_summary(prompt)]
    (request,) = asked.said
    assert (asked.offers, asked.params) == ((), {})
    assert [word in request.text for word in ("first", '"tool": "pure"', "pure0", "done", "second")] == [True] * 4 + [
        False
    ]


def test_long_run_keeps_its_message_and_its_unread_results(world):
    summing(world, rounds(1, 1, 1), threshold=ASKS)
    talk(world, "find out")

    whole = [prompt for prompt in world.models.prompts if not is_for_summary(prompt)]
    assert [len(prompt.said) for prompt in whole] == [1, 3, 4, 6]
    assert last_prompt(world) == ["summary 1", "find out", "", "pure10", "", "pure20"]
    assert summaries(world)[0]["said"][0]["text"] == "find out"
    check_all(world.store)


def test_the_checkpoint_of_a_round_is_written_before_the_summary(world):
    summing(world, rounds(1, 1), threshold=ASKS)
    talk(world, "find out")
    assert kinds(world)[4:7] == ["ToolResultsCommitted", "HistoryCompacted", "AssistantTurnCommitted"]
    assert kinds(world).count("ToolResultsCommitted") == 2


def test_a_summary_that_does_not_get_below_the_threshold_is_not_made_again_and_again(world):
    summing(world, rounds(*[1] * 8), threshold=1)
    talk(world, "find out")
    for number in range(4):
        talk(world, f"m{number}")
    assert len(summaries(world)) == 1


def test_a_summary_takes_in_the_one_before(world):
    summing(world, lambda prompt: spoken("aye"), threshold=None)
    talk(world, "opening")
    for text in ("second", "third"):
        compact(world)
        talk(world, text)

    asked = [prompt for prompt in world.models.prompts if is_for_summary(prompt)]
    assert "summary 1" in asked[1].said[0].text
    assert "opening" not in asked[1].said[0].text
    assert last_prompt(world) == ["summary 2", "third"]


def test_newest_exchanges_stay_verbatim_if_the_agent_sets_so(world):
    summing(world, lambda prompt: spoken(f"re: {prompt.said[-1].text}"), threshold=FITS, keep=2)
    for text in "abcd":
        talk(world, text)
    assert last_prompt(world) == ["summary 1", "b", "re: b", "c", "re: c", "d"]


def test_on_request_the_next_turn_of_an_idle_thread_begins_with_it_and_only_that(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    compact(world)
    compact(world)
    for text in ("second", "third"):
        talk(world, text)

    assert [body["cause"] for body in summaries(world)] == ["request"]
    assert last_prompt(world) == ["summary 1", "second", "aye", "third"]


def test_request_during_the_model_call_takes_effect_at_the_next_inference(world):
    summing(world, rounds(1, 1))
    talk(world, "before")
    summing(world, rounds(1, 1))
    once = iter([True])
    world.models.before_reply = lambda prompt: compact(world) if next(once, False) else None
    turn = talk(world, "find out")

    assert [row["step"] for row in world.rows("journal", kind="HistoryCompacted", run_id=turn["run_id"])] == [3]


def test_a_request_that_comes_while_a_summary_is_written_is_one_more(world):
    summing(world, rounds(1, 1))
    talk(world, "before")
    summing(world, rounds(1, 1))
    compact(world)
    once = iter([True])
    world.models.before_reply = lambda prompt: compact(world) if next(once, False) else None
    talk(world, "find out")

    assert [body["asked"] for body in summaries(world)] == [1, 2]
    check_all(world.store)


def test_a_request_that_finds_nothing_to_sum_up_waits_until_there_is_something(world):
    summing(world, lambda prompt: spoken("aye"))
    once = iter([True])
    world.models.before_reply = lambda prompt: compact(world) if next(once, False) else None
    talk(world, "first")
    assert summaries(world) == []
    talk(world, "second")
    assert len(summaries(world)) == 1


def test_a_thread_that_is_not_there_cannot_be_compacted(world):
    with pytest.raises(NotFound, match="no thread 'gone'"):
        compact(world, "gone")


def test_open_call_and_all_after_it_stay_and_its_late_result_keeps_its_place(world):
    world.tools.asks = asks_once(1)
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "before")
    summing(world, rounds(2, 1, 1))
    compact(world)
    compact(world)
    talk(world, "go")
    compact(world)

    assert last_prompt(world) == ["summary 1", "go", "", "pure0", AWAITING, "", "pure10", "", "pure20"]
    (question,) = world.inbox()
    approve(world, question)
    assert last_prompt(world) == ["summary 1", "go", "", "pure0", "pure1", "", "pure10", "", "pure20", "done", DECIDED]
    assert len(summaries(world)) == 1, "the late result had not been seen"
    talk(world, "more")
    assert last_prompt(world) == ["summary 2", "more"]
    check_all(world.store)


def test_ids_that_a_provider_uses_again_start_new_lives_although_the_old_ones_are_summed_up(world):
    summing(world, rounds(2, 2, 2, 1, reuse_ids=True), threshold=ASKS)
    turn = talk(world, "find out")

    assert turn["disposition"] == "answered"
    assert len(summaries(world)) == 1
    assert [call["generation"] for call in world.rows("calls", ask_id="c0")] == [1, 2, 3, 4]
    check_all(world.store)


def planning(prompt):
    """One round, then an answer."""
    asked = planner_request(prompt)
    if asked is None:
        return spoken("answer")
    command = {"purpose": "look", "tool_name": "pure", "tool_kwargs": {}, "todo_suggestion": ""}
    is_first = asked["info"]["round_index"] == 0
    action = ("execute", [command]) if is_first else ("response", [])
    return spoken(json.dumps(dict(zip(("next_action", "execution_commands"), action, strict=True))))


@pytest.mark.parametrize("history", [True, False])
def test_planner_with_history_waits_for_the_summary_and_one_without_does_not(world, history):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    change_agent(world, plan=PlanSpec(history=history))
    summing(world, planning)
    compact(world)
    turn = talk(world, "find out", strategy="plan_execute")

    wrote = [is_for_summary(prompt) for prompt in world.models.prompts[1:]]
    assert wrote == ([True, False, False, False] if history else [False, False, True, False])
    asked = [prompt for prompt in world.models.prompts if planner_request(prompt)]
    assert [planner_request(prompt)["input"]["user_input"] for prompt in asked] == ["find out"] * 2
    assert [texts(prompt.said)[:-1] for prompt in asked] == [["summary 1"] * history] * 2
    assert texts(world.models.prompts[-1].said)[:2] == ["summary 1", "find out"]
    assert turn["disposition"] == "answered"
    check_all(world.store)


def test_planner_with_too_long_a_history_is_called_after_the_summary_and_loses_nothing_of_its_run(world):
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "first")
    change_agent(world, plan=PlanSpec())
    summing(world, planning, threshold=FITS)
    talk(world, "find out", strategy="plan_execute")

    assert [is_for_summary(prompt) for prompt in world.models.prompts[1:]] == [True, False, False, False]
    (ended,) = [row for row in world.rows("journal", kind="RunFinished") if "extra" in row["body"]]
    assert [log["result"] for log in ended["body"]["extra"]["tool_logs"]] == ["pure"]
    check_all(world.store)


def test_of_a_run_that_plans_nothing_is_taken(world):
    """Its plans and what was said to it are read in full, also where its answer was begun."""
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    begun = iter([True])

    def pausing(prompt):
        reply = planning(prompt)
        if reply.text != "answer" or not next(begun, False):
            return reply
        compact(world)
        return replace(reply, stop=StopReason.PAUSE_TURN)

    change_agent(world, plan=PlanSpec())
    summing(world, pausing)
    turn = talk(world, "find out", strategy="plan_execute")

    assert [body["entries"] for body in summaries(world)] == [2]
    assert len(world.rows("journal", kind="PlanCommitted")) == 2
    assert turn["disposition"] == "answered"


def test_what_plugins_note_at_the_start_is_kept_with_the_summary(world):
    seen = []
    start = plugin_for(Hook.RUN_START, SetState(scope=Scope.RUN, key="begun", value=True), "starts")
    look = plugin_for(
        Hook.BEFORE_INFERENCE, lambda context: seen.append(context.noted(Scope.RUN, "begun")) or [], "looks"
    )
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    install(world, start, look)
    compact(world)
    talk(world, "second")
    assert seen == [True]


def test_start_hook_of_plugins_runs_once_and_shows_where_the_run_begins(world):
    starts, in_run = [], []
    note_start = plugin_for(Hook.RUN_START, lambda context: starts.append(context.step) or [], "starts")
    look = plugin_for(
        Hook.BEFORE_INFERENCE, lambda context: in_run.append([type(one) for one in context.said_in_run]) or [], "looks"
    )
    install(world, note_start, look)
    summing(world, rounds(1))
    talk(world, "first")
    summing(world, rounds(1, 1))
    compact(world)
    third = iter([False, False, True])
    world.models.before_reply = lambda prompt: compact(world) if next(third, False) else None
    talk(world, "second")

    exchange = [AssistantSays, ToolSays]
    assert starts == [1, 1]
    assert [body["said"] != [] for body in summaries(world)] == [False, True]
    assert in_run[-3:] == [[UserSays], [UserSays, *exchange], [UserSays, *exchange]]


def test_an_inference_that_compacts_nothing_sends_not_one_statement_more(world):
    def cost(**spec):
        summing(world, rounds(1), **spec)
        before = world.statements
        talk(world, "hi", thread=f"t{before}")
        return world.statements - before

    assert cost() == cost(threshold=10_000)


def test_what_is_read_for_a_prompt_does_not_grow_with_what_was_summed_up(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    read = []
    for number in range(12):
        compact(world)
        talk(world, f"m{number}")
        with world.store.read() as tx:
            rows = journal._HISTORY.rows(tx, {"thread_id": "t1"})
        read.append((len(rows), sum(len(str(row["body"])) for row in rows) // 100))

    assert set(read[1:]) == {read[1]}
    assert len(world.rows("journal", thread_id="t1")) == 4 * 13 - 1, "nothing is deleted"


def test_a_run_that_is_rolled_back_takes_its_summary_along(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    summing(world, rounds(1))
    compact(world)
    once = iter([False, True])
    world.models.before_reply = lambda prompt: (
        world.submit("rather this", when_busy=WhenBusy.ROLLBACK) if next(once, False) else None
    )
    talk(world, "second")

    again = [prompt.said[0].text for prompt in world.models.prompts if is_for_summary(prompt)][1]
    assert ('"user": "first"' in again, "summary 1" in again, "second" in again) == (True, False, False)
    assert last_prompt(world) == ["summary 2", "rather this"]
    check_all(world.store)


def test_messages_that_a_run_absorbs_stay_verbatim(world):
    summing(world, rounds(1, 1, 1, 1), threshold=ASKS)
    once = iter([True])
    world.models.before_reply = lambda prompt: (
        world.submit("and blue ones", when_busy=WhenBusy.STEER) if next(once, False) else None
    )
    talk(world, "find red ones")

    assert [message["text"] for message in summaries(world)[0]["said"]][:1] == ["find red ones"]
    told = [one.text for one in world.models.prompts[-1].said if isinstance(one, UserSays)]
    assert told[1:] == ["find red ones", "and blue ones"]
    check_all(world.store)


def test_a_stepped_run_is_left_alone_and_the_request_waits_for_the_next(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    compact(world)
    turn = world.submit("second", control=Control.STEP)
    world.run_dry()
    for _ in range(2):
        world.step(turn, "next")
        world.run_dry()
    assert (last_prompt(world), summaries(world)) == (["first", "aye", "second"], [])
    assert world.row("turns", id=turn)["disposition"] == "answered"

    talk(world, "third")
    assert last_prompt(world) == ["summary 1", "third"]
    check_all(world.store)


def test_looking_for_a_summary_never_goes_through_the_thread(world):
    """Whatever SQLite thinks of it: it picks the first index that fits, not the smallest."""
    if world.store.is_postgres:
        return
    with world.store.read() as tx:
        told = explained(tx, journal._HISTORY, {"thread_id": "t1"}, "EXPLAIN QUERY PLAN")
        plan = [row[3] for row in told if row[3].startswith("SEARCH")]
    assert [step for step in plan if "ix_journal_thread" in step] == [
        "SEARCH journal USING INDEX ix_journal_thread (thread_id=? AND id>?)"
    ]


def test_in_another_thread_nothing_changes(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    talk(world, "there", thread="t2")
    compact(world)
    talk(world, "again", thread="t2")
    assert (summaries(world), failures(world)) == ([], [])
    assert last_prompt(world) == ["there", "aye", "again"]


def test_show_draws_the_step_and_the_history_is_shown_whole(world):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    compact(world)
    turn = talk(world, "second")

    run = views.run(world.store, turn["run_id"])
    line = next(line for line in run_lines(run) if "compact" in line)
    assert [step.kind for step in run.steps] == ["compaction", "inference"]
    assert run.steps[0].summary == "summary 1"
    told = "  1  compact  fake, 0 ms, 3 tokens in, 2 out, cost unknown, 2 entries summed up, on request"
    assert line.startswith(told)
    assert [remark.text for remark in views.history(world.store, "t1")] == ["first", "aye", "second", "aye"]


def test_show_gives_the_reason_for_a_missing_summary(world):
    summing(world, lambda prompt: spoken("aye"), writer=lambda prompt: spoken(" "), threshold=FITS)
    talk(world, "first")
    turn = talk(world, "second")

    drawn = list(run_lines(views.run(world.store, turn["run_id"])))
    assert "2 out, cost unknown, no summary" in drawn[2]
    assert drawn[3].strip() == "the history stays whole: the model said nothing"
