"""The trace of a run, made of its rows: one tree that says what they say, whatever had happened."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import ModelFailed, NotFound
from chordage.orchestrator.core.model import Attempt, Fault
from chordage.orchestrator.views import spans
from support.busy_thread import a_round_then_user_texts, in_the_first_call, steer
from support.fakes import spoken
from support.family import Lines, ask, by_agent, settle_in
from support.questions import approve, asks_once
from support.span_truth import SpanDict, check_trace, spans_in, trace_of
from support.world import World

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "as I told nobody but you"


def answered(world: World, text: str = "hi", **fields: object) -> str:
    turn = world.submit(text, **fields)
    world.run_dry()
    return turn


def trace(world: World, turn: str, *, contents: bool = False) -> list[SpanDict]:
    root = spans.run_of_turn(world.store, turn)
    check_trace(world.store, world.rows, root)
    return spans_in(trace_of(world.store, root, contents=contents))


def only(found: list[SpanDict], name: str) -> SpanDict:
    (span,) = [span for span in found if span["name"] == name]
    return span


def test_reply_has_the_attributes_of_the_conventions(world: World) -> None:
    failed = Attempt(model="acme:large", seconds=0.5, fault=Fault.SERVER, detail=SECRET)
    answer = Attempt(model="acme:small", seconds=1.5, first_text=0.25)
    script = world.models.script

    def later(prompt):
        world.clock.pass_by(10)
        return replace(script(prompt), model="acme:small", attempts=(failed, answer))

    world.models.script = later
    found = trace(world, answered(world))
    reply = next(span for span in found if span.operation == "chat")

    assert (reply["name"], reply["kind"]) == ("chat large", 3)
    assert reply.of["gen_ai.provider.name"] == "acme"
    assert (reply.of["gen_ai.request.model"], reply.of["gen_ai.response.model"]) == ("large", "small")
    assert reply.of["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert reply.of["gen_ai.response.time_to_first_chunk"] == 0.25
    assert reply.of["gen_ai.request.stream"] is True
    assert reply.end - reply.start == 2_000_000_000
    (event,) = reply["events"]
    assert event["name"] == "chordage.request_failed"
    assert int(event["timeUnixNano"]) == reply.start + 500_000_000
    assert {"key": "error.type", "value": {"stringValue": "server"}} in event["attributes"]
    assert "error.type" not in reply.of
    assert SECRET not in json.dumps(found)


def test_model_that_never_answered_is_a_span_with_its_fault(world: World) -> None:
    tries = (Attempt(model="acme:large", seconds=2.0, fault=Fault.AUTH, detail=SECRET),)

    def broken(_):
        raise ModelFailed("no", fault=Fault.AUTH, attempts=tries)

    world.models.script = broken
    turn = answered(world)
    found = trace(world, turn)

    assert only(found, "chat large").of["error.type"] == "auth"
    assert only(found, "chat large")["status"] == {"code": 2}
    assert found[0].of["error.type"] == "model_auth"
    assert SECRET not in json.dumps(found)
    assert only(trace(world, turn, contents=True), "chat large")["status"] == {"code": 2, "message": SECRET}


def test_contents_are_there_when_they_are_asked_for_and_only_then(world: World) -> None:
    world.tools.asks = asks_once(0)
    turn = answered(world, SECRET)
    approve(world, world.inbox()[0], payload={"said": "yes, do"})

    without, with_them = trace(world, turn), trace(world, turn, contents=True)

    assert SECRET in json.dumps(with_them)
    assert "yes, do" in json.dumps(with_them)
    for word in (SECRET, "yes, do", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments",
                 "gen_ai.tool.call.result", "chordage.question.prompt", "chordage.decision.by"):  # fmt: skip
        assert word not in json.dumps(without), word
        assert word in json.dumps(with_them), word
    assert [span["spanId"] for span in without] == [span["spanId"] for span in with_them]


def test_reasoning_is_a_part_of_its_reply_where_contents_are_asked_for(world: World) -> None:
    world.models.script = lambda _: replace(spoken("aye"), reasoning=SECRET)
    turn = answered(world)
    reply = next(span.of["gen_ai.output.messages"] for span in trace(world, turn, contents=True) if span["kind"] == 3)

    assert [part["type"] for part in json.loads(reply)[0]["parts"]] == ["reasoning", "text"]
    assert SECRET in reply
    assert SECRET not in json.dumps(trace(world, turn))


def test_wait_for_a_decision_is_a_span_in_its_call(world: World) -> None:
    world.tools.asks = asks_once(0)
    turn = answered(world)
    world.clock.pass_by(30 * 86_400)
    approve(world, world.inbox()[0])
    found = trace(world, turn)
    (wait,) = [span for span in found if span["name"].startswith("wait_for_decision")]

    assert wait.end - wait.start == 30 * 86_400 * 10**9
    assert wait.of["chordage.decision.action"] == "resume"
    call = next(span for span in found if span["spanId"] == wait.parent)
    assert call.of["chordage.call.id"] == wait.of["chordage.call.id"]


def test_run_that_waits_has_a_trace_that_ends_with_what_is_recorded(world: World) -> None:
    world.tools.asks = asks_once(0)
    turn = answered(world)
    before = trace_of(world.store, spans.run_of_turn(world.store, turn))
    world.clock.pass_by(3600)
    found = trace(world, turn)

    assert trace_of(world.store, spans.run_of_turn(world.store, turn)) == before, "it depends on no clock"
    assert [span["name"] for span in found if "chordage.open" in span.of] == [
        "invoke_agent ada", "execute_tool pure", "wait_for_decision pure"
    ]  # fmt: skip
    world.recover()
    assert {span["spanId"] for span in spans_in(before)} <= {span["spanId"] for span in trace(world, turn)}


def test_sub_agents_are_below_the_call_that_asked_them(world: World) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob", "who?")]], "bob": [[ask("cleo", "who?")]]})
    turn = answered(world)
    found = trace(world, turn)

    by_id = {span["spanId"]: span for span in found}
    assert by_id[only(found, "invoke_agent cleo").parent]["name"] == "execute_tool ask_cleo"
    assert by_id[only(found, "execute_tool ask_cleo").parent]["name"] == "invoke_agent bob"
    assert by_id[only(found, "invoke_agent bob").parent]["name"] == "execute_tool ask_bob"
    assert found[0]["traceId"] == only(found, "invoke_agent cleo")["traceId"]
    child = str(by_agent(world)["cleo"]["run_id"])
    assert trace_of(world.store, child) == trace_of(world.store, found[0].of["chordage.run.id"]), "of the whole tree"


def test_worker_that_was_lost_in_a_model_call_is_a_span_in_it(world: World) -> None:
    world.submit()
    world.deliver(world.pending.pop(0))
    run = world.row("runs")
    with world.store.write() as tx:  # as the heartbeat records who asks the model
        tx.exec_driver_sql("UPDATE runs SET claim_worker = 'lost'")
    world.pending.clear()
    world.forget_the_dead()
    world.sweep(seconds=40)
    found = check_trace(world.store, world.rows, run["id"])

    gap = only(found, "worker_lost")
    assert (gap.of["error.type"], gap.of["chordage.worker"], gap.of["chordage.step"]) == ("worker_lost", "lost", 1)
    (model,) = [span for span in found if span["spanId"] == gap.parent]
    assert (model["name"], model.of["chordage.lost_claims"]) == ("chat", 1)
    world.recover()
    after = check_trace(world.store, world.rows, run["id"])
    assert only(after, "worker_lost")["spanId"] == gap["spanId"]
    assert only(after, "worker_lost").parent == model["spanId"], "the reply is the same operation, tried again"


def test_callers_of_the_messages_of_a_run_are_links(world: World) -> None:
    world.models.script = a_round_then_user_texts
    in_the_first_call(world, lambda: steer(world, "mind this", traceparent=TRACEPARENT.replace("b7ad", "aaaa")))
    turn = answered(world, traceparent=TRACEPARENT)
    (root, *_) = trace(world, turn)

    assert [(link["traceId"], link["spanId"], link["flags"]) for link in root["links"]] == [
        ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1),
        ("0af7651916cd43dd8448eb211c80319c", "aaaa6b7169203331", 1),
    ]


def test_malformed_traceparent_is_ignored(world: World) -> None:
    turn = answered(world, traceparent="00-nonsense")

    assert world.row("turns", id=turn)["traceparent"] is None
    assert "links" not in trace(world, turn)[0]


def test_traceparent_costs_no_statement(world: World) -> None:
    counts = []
    for given in (None, TRACEPARENT):
        before = world.statements
        answered(world, thread=None, traceparent=given)
        counts.append(world.statements - before)

    assert counts[0] == counts[1]


def test_turn_without_a_run_says_so(world: World) -> None:
    turn = world.submit(deadline=world.clock() + timedelta(seconds=5))
    with pytest.raises(NotFound, match=f"turn {turn} has no run, so it has no spans: it is queued"):
        spans.run_of_turn(world.store, turn)
    world.pending.clear()
    world.sweep(seconds=10)
    with pytest.raises(NotFound, match="it is expired"):
        spans.run_of_turn(world.store, turn)
    with pytest.raises(NotFound, match="there is no turn 'nothing'"):
        spans.run_of_turn(world.store, "nothing")
    with pytest.raises(NotFound, match="there is no run 'nothing'"):
        spans.trace_spans(world.store, "nothing")


def test_trace_is_not_found_outside_of_its_space(world: World) -> None:
    turn = answered(world, thread=None, space="api@one")
    run = world.row("turns", id=turn)["run_id"]

    assert list(spans.trace_spans(world.store, run, space="api@one"))
    with pytest.raises(NotFound):
        spans.trace_spans(world.store, run, space="api@two")
    with pytest.raises(NotFound):
        spans.run_of_turn(world.store, turn, space="api@two")


def test_merged_turn_has_the_trace_of_the_one_it_became_part_of(world: World) -> None:
    older = world.submit("old", coalesce_key="report")
    newer = world.submit("new", coalesce_key="report")
    world.run_dry()

    assert spans.run_of(world.store, older) == spans.run_of(world.store, newer) == world.row("runs")["id"]


def test_cancelled_run_and_its_calls_are_marked(world: World) -> None:
    turn = world.submit()
    for _ in range(2):
        world.deliver(world.pending.pop(0))
    stages.cancel_turn(world.runtime, turn, SECRET)
    world.run_dry()
    (root, *below) = trace(world, turn)

    assert (root.of["chordage.reason"], root["status"]) == ("cancelled", {})
    assert SECRET not in json.dumps([root, *below])
    assert {span.of["chordage.call.status"] for span in below if span.operation == "execute_tool"} <= {
        "cancelled", "succeeded"
    }  # fmt: skip
