"""What a hostile schedule, a retry or a broken plugin does to runs that wait. Each of these was a bug once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from chordage.orchestrator import answering, stages
from chordage.orchestrator.core.agent import MixedRound, ToolMode
from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.phases import Hook, Scope
from chordage.orchestrator.core.state_updates import Merge, SetState
from chordage.orchestrator.core.suspending import Action, DecisionRequest, Question, Why
from chordage.orchestrator.core.verdicts import AmendArguments, SuspendCall
from chordage.orchestrator.plugins.base import Plugin
from chordage.orchestrator.plugins.crew import Crew
from chordage.orchestrator.store import claims
from support.fakes import rounds_of, spoken

ASK = Question(why=Why.TOOL, prompt="May I?")


def asks_once(*numbers, question=ASK):
    asked = set()

    def ask(order):
        if order.arguments.get("n") not in numbers or order.call_id in asked:
            return None
        asked.add(order.call_id)
        return question

    return ask


def crew(world, *plugins):
    made = Crew(plugins)
    object.__setattr__(world.runtime, "crews", lambda agent: made)


def saying(hook, fn, name="tested"):
    return type("T", (Plugin,), {"id": name, hook.value: lambda self, c: fn(c)})()


def settings(world, **c):
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], **c)


def approve(row, payload=True, **m):
    return DecisionRequest(target=row["id"], action=Action.RESUME, payload=payload, **m)


def st(world):
    return [(c["arguments"].get("n"), c["status"], c["code"]) for c in world.rows("calls")]


def test_a_retried_approval_of_a_call_answers_no_later_question(world):
    world.models.script = rounds_of(1)
    world.tools.asks = lambda o: ASK if len(world.tools.orders) < 3 else None
    world.submit()
    world.run_dry()
    call = world.row("calls")
    world.decide(approve(call, key="k"))
    world.run_dry()
    second = world.inbox()[0]
    (again,) = world.decide(approve(call, key="k"))
    assert again.duplicate and world.inbox() == [second]


def test_a_run_that_ends_with_an_error_asks_nobody_any_more(world):
    n = [0]

    def boom(c):
        n[0] += 1
        if n[0] == 2:
            raise RuntimeError("x")

    crew(world, saying(Hook.AFTER_INFERENCE, boom))
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    assert world.row("runs")["status"] == "done"
    assert world.inbox() == []


def test_an_error_beside_a_call_that_waits_waits_for_nobody(world):
    def boom(c):
        raise RuntimeError("x")

    crew(world, saying(Hook.AFTER_TOOL_EXECUTE, boom))
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    assert world.row("runs")["status"] == "done"


def test_a_result_that_comes_twice_is_noted_once(world):
    crew(
        world, saying(Hook.AFTER_TOOL_EXECUTE, lambda c: [SetState(scope=Scope.RUN, key="k", value=1, merge=Merge.ADD)])
    )
    world.models.script = rounds_of(1)
    again = [False]

    def before(order):
        if not again[0]:
            again[0] = True
            stages.run_batch(world.runtime, [order.call_id])  # the redelivered twin, pure, wins

    world.tools.before = before
    world.submit()
    world.run_dry()
    print([(r["key"], r["value"]) for r in world.rows("plugin_state")])
    assert [r["value"] for r in world.rows("plugin_state") if r["key"].endswith("k")] == [1]


def test_nothing_stays_parked_behind_a_call_that_was_refused(world):
    settings(world, tool_mode=ToolMode.SEQUENTIAL)

    def gate(c):
        out = [SetState(scope=Scope.RUN, key="last", value=c.call.arguments["n"])] if c.call.arguments["n"] < 2 else []
        if c.call.arguments["n"] == 1:
            out.append(SuspendCall(prompt="?"))
        return out

    crew(world, saying(Hook.BEFORE_TOOL_EXECUTE, gate))
    world.models.script = rounds_of(3)
    world.submit()
    world.run_dry()
    world.sweep(100)
    world.run_dry()
    assert world.rows("calls")[2]["status"] != "new"


def test_a_reply_that_is_only_a_pause_puts_no_run_to_rest(world):
    n = [0]
    base = rounds_of(2)

    def script(p):
        n[0] += 1
        if n[0] == 2:
            return replace(spoken("wait"), stop=StopReason.PAUSE_TURN)
        return base(p)

    world.models.script = script
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    print(n)
    assert n[0] == 3


def test_a_heartbeat_sets_no_parked_call_free(world):
    settings(world, tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = rounds_of(3)
    world.tools.asks = asks_once(1)
    rt = world.runtime
    world.submit()
    # the beat that read `behind` before the call asked, and writes after it was put aside
    from chordage.orchestrator import asking

    orig = asking.put_aside

    def put(*a, **k):
        done = orig(*a, **k)
        behind = [c for h in rt.held.all() for c in h.behind]
        print("BEHIND", behind, rt.held.all())
        with world.store.write() as tx:
            claims.renew_waiting_calls(tx, behind, lease_until=rt.leases.until(rt.now()))
        return done

    asking.put_aside = put
    try:
        world.run_dry()
    finally:
        asking.put_aside = orig
    print(
        [o.arguments for o in world.tools.orders],
        world.rows("calls")[2]["lease_until"],
        world.row("runs")["lease_until"],
    )
    world.sweep(100)
    world.run_dry()
    print([o.arguments for o in world.tools.orders])
    assert world.rows("calls")[2]["status"] == "new"


def test_a_redelivered_batch_does_not_overtake_the_call_in_hand(world):
    settings(world, tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = rounds_of(3, tool="unsafe")
    order = []
    busy = [False]

    def before(o):
        order.append(("start", o.arguments["n"]))
        if o.arguments["n"] == 1 and not busy[0]:
            busy[0] = True
            ids = [c["id"] for c in world.rows("calls")]
            stages.run_batch(world.runtime, ids, in_doubt=True)
            order.append(("end", 1))

    world.tools.before = before
    world.submit()
    world.run_dry()
    print(order)
    assert order.index(("end", 1)) < order.index(("start", 2))


def test_amendments_hold_for_edited_arguments_too(world):
    def gate(c):
        out = [AmendArguments({"n": 9})]
        if not c.call.resumed:
            out.append(SuspendCall(prompt="?"))
        return out

    crew(world, saying(Hook.BEFORE_TOOL_EXECUTE, gate))
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()
    world.decide(approve(world.inbox()[0], edited_args={"n": 3}))
    world.run_dry()
    print([o.arguments for o in world.tools.orders])
    assert world.tools.orders[0].arguments["n"] == 9


def test_a_plugin_that_breaks_at_an_approved_call_ends_the_run(world):
    def gate(c):
        if c.call.resumed:
            raise RuntimeError("x")
        return [SuspendCall(prompt="?")]

    crew(world, saying(Hook.BEFORE_TOOL_EXECUTE, gate))
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()
    world.decide(approve(world.inbox()[0]))
    world.run_dry()
    assert world.row("runs")["reason"] == "error"


def test_the_time_a_person_takes_is_no_working_time(world):

    settings(world, limits=replace(world.agents.agents["ada"].limits, timeout=60))
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    world.clock.pass_by(3600)
    world.decide(approve(world.inbox()[0]))
    world.run_dry()
    assert world.row("runs")["reason"] == "natural_end"


def test_a_call_that_joined_a_round_is_an_outcome_of_it(world):
    # step A: 0 suspended, 1 done -> model -> second round: one call that asks; first is approved beside it
    world.models.script = rounds_of(2, rounds=2)
    seen = []

    def asks(o):
        if o.call_id in seen:
            return None
        if o.idempotency_key.split(":")[1] in ("r0c0", "r1c0", "r1c1"):
            if (
                o.idempotency_key.split(":")[1] == "r1c1"
                and world.inbox()[0]["call_id"] == world.rows("calls")[0]["id"]
            ):
                seen.append(world.rows("calls")[0]["id"])
                world.decide(approve(world.inbox()[0]))
            seen.append(o.call_id)
            return ASK
        return None

    world.tools.asks = asks
    world.submit()
    world.run_dry()
    print(len(world.models.prompts))
    assert len(world.models.prompts) == 3


def test_a_decision_just_in_time_beats_the_expiry_that_cancels(world):
    import sys

    from chordage.orchestrator.core.suspending import OnExpiry

    R = sys.modules["chordage.orchestrator.stages.rescue"]
    world.models.script = rounds_of(1)
    world.tools.asks = asks_once(0, question=replace(ASK, expires_in=60.0, on_expiry=OnExpiry.CANCEL_RUN))
    world.submit()
    world.run_dry()
    row = world.inbox()[0]
    orig = R._answer_for_nobody

    def late(rt, asked):
        world.decide(approve(row))
        return orig(rt, asked)

    R._answer_for_nobody = late
    try:
        world.sweep(61)
    finally:
        R._answer_for_nobody = orig
    world.run_dry()
    assert world.row("turns")["disposition"] == "answered"


@pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("mixed", list(MixedRound))
def test_a_call_that_joins_while_the_round_is_committed_is_not_left_behind(world, mixed):
    settings(world, mixed_round=mixed)
    world.models.script = rounds_of(2)
    world.tools.asks = asks_once(0)
    world.submit()
    while not world.inbox():
        world.deliver(world.pending.pop(0))
    rt = world.runtime
    row = world.inbox()[0]
    req = [approve(row)]
    run = world.row("runs")
    asked = answering.checked(rt, req)
    out = []
    with world.store.write() as tx:
        _, moved = answering.take(tx, rt, req, asked, "test")

        stages.run_batch(rt, [world.rows("calls")[1]["id"]])
        t = threading.Thread(target=lambda: out.extend(stages.commit_round(rt, run["id"], run["step"])))
        t.start()
        time.sleep(1.5)
    t.join()

    # model answers while the joined call has not yet run
    world.pending = [i for i in world.pending if type(i).__name__ != "Header"]
    world.pending += out
    world.run_dry()
    world.pending += moved
    world.run_dry()
    for _ in range(10):
        world.sweep(100)
        world.run_dry()
    assert world.row("runs")["status"] == "done"
