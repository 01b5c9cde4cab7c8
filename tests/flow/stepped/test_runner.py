"""The runner: a loop over replies that are held, whose state is nowhere but in the database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import OnPlannerError, PlanSpec
from chordage.orchestrator.core.errors import ModelFailed, StepRefused
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import Standing
from chordage.orchestrator.plugins.planners import PlannerFailed
from chordage.tasks.schema import request_from, verb_from
from chordage.workers.client.client import FleetClient
from chordage.workers.client.runner import Runner
from support.driving import asks, in_short, in_turn, text
from support.invariants import check_all
from support.one_turn import change_agent
from support.planning import plan_of, planner
from support.world import World

PATIENCE = 120.0  # seconds; a machine may be busy


class WorldAccess:
    """To the turns of a world. A wait delivers the next message."""

    def __init__(self, world: World) -> None:
        self.world = world

    def submit(self, fields: Mapping[str, Any]) -> str:
        admitted, intents = stages.admit(self.world.runtime, request_from(fields, source="test", space=None))
        self.world.pending += intents
        return admitted.turn_id

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        done, intents = stages.step(self.world.runtime, verb_from(fields, space=None))
        self.world.pending += intents
        return asdict(done)

    def read(self, turn: str) -> dict[str, Any]:
        return views.as_json(views.stepped(self.world.store, turn))

    @contextmanager
    def subscribed(self, turn_id: str) -> Iterator[WorldAccess]:
        yield self

    def wait(self, seconds: float) -> None:
        if self.world.pending:
            self.world.deliver(self.world.pending.pop(0))
        else:
            self.world.clock.pass_by(seconds)

    def close(self) -> None:
        pass


@pytest.fixture
def client(world) -> FleetClient:
    return FleetClient(WorldAccess(world))


def runner(client: FleetClient, world: World, *replies, **fields) -> Runner:
    world.models.script = in_turn(*replies)
    return client.runner("hi", **{"thread_id": "t1", "timeout": PATIENCE, **fields})


def prompts(world) -> list[list[str]]:
    return [in_short(prompt.said) for prompt in world.models.prompts]


def test_B1_B6_each_reply_is_handed_out_once_and_text_ends_the_loop(client, world):
    it = runner(client, world, asks("a"), text("done"))

    seen = [(message.iteration, message.text, len(message.asks)) for message in it]

    assert seen == [(1, "", 1), (2, "done", 0)]
    assert (it.done().text, it.done().ok, it.standing) == ("done", True, Standing.DONE)
    check_all(world.store)


def test_B63_loop_over_a_finished_turn_yields_nothing(client, world):
    it = runner(client, world, text("done"))
    assert len(list(it)) == 1
    assert list(it) == []


def test_pushing_replies_and_results_inside_the_loop(client, world):
    it = runner(client, world, asks("a"), text("done"))
    for message in it:
        results = it.generate_tool_response()
        if results:
            it.push_messages(message, results, "be brief")

    assert prompts(world)[1] == ["hi", "R(a)", "a=pure0", "be brief"]
    assert world.tools.ran.total() == 1
    check_all(world.store)


def test_settings_steers_and_calls_are_reached_from_the_loop(client, world):
    it = runner(client, world, asks("a", "b"), text("done"), params={"temperature": 1})
    it.set_params(max_tokens=5)
    for message in it:
        it.set_options(model_retries=0)
        if message.asks:
            it.hold_calls("a")
            it.decide_call("a", allow=True)
            it.supply_tool_results({"ask_id": "b", "content": "mine"})
            assert it.generate_tool_response()[1]["content"] == "mine"
            assert it.retry_tools("a")[0]["content"] == "pure0"
            it.steer("S")

    assert prompts(world)[1] == ["hi", "R(a b)", "a=pure0", "b=mine", "S"]
    assert world.models.prompts[0].params == {"temperature": 1, "max_tokens": 5}


def test_B65_B73_same_runner_continues_after_its_break(client, world):
    it = runner(client, world, asks("a"), text("done"))
    for _ in it:
        break
    assert (it.standing, world.tools.ran.total()) == (Standing.PARKED, 0)

    assert [message.text for message in it] == ["done"]
    assert world.tools.ran.total() == 1


def test_another_runner_is_handed_what_it_finds_held(client, world):
    it = runner(client, world, asks("a"), text("done"))
    for _ in it:
        break
    other = FleetClient(WorldAccess(world)).runner(run_id=it.run_id, timeout=PATIENCE)

    assert [len(message.asks) for message in other] == [1, 0]
    assert world.tools.ran.total() == 1
    assert it.done().text == "done"


def test_B66_a_loop_whose_block_raises_can_be_resumed(client, world):
    it = runner(client, world, asks("a"), text("done"))
    with pytest.raises(ZeroDivisionError):
        for _ in it:
            raise ZeroDivisionError

    assert [message.text for message in it] == ["done"]


def test_B64_B70_until_done_continues_after_a_break_and_again(client, world):
    it = runner(client, world, asks("a"), asks("b"), text("done"))
    for _ in it:
        break

    assert it.until_done().text == "done"
    assert it.until_done().text == "done"
    assert world.tools.ran.total() == 2


def test_B67_B69_failed_request_is_raised_and_the_loop_can_continue(client, world):
    it = runner(client, world, asks("a"), text("done"))
    failures = iter([None, "down"])

    def before(_prompt):
        if next(failures, None):
            raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    world.models.before_reply = before
    with pytest.raises(ModelFailed, match="down") as error:
        list(it)
    assert error.value.fault is Fault.SERVER

    assert [message.text for message in it] == ["done"]
    assert world.tools.ran.total() == 1


def test_failure_of_a_custom_planner_is_raised_and_the_consumer_decides_without_it(client, world, monkeypatch):
    module = ModuleType("planner_that_fails")
    module.plan = lambda prompts: 1 / 0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    change_agent(world, plan=PlanSpec(planner=f"{module.__name__}:plan", on_error=OnPlannerError.FAIL))
    world.models.script = planner()
    it = client.runner("find out", strategy="plan_execute", timeout=PATIENCE)

    with pytest.raises(PlannerFailed, match="raised ZeroDivisionError"):
        list(it)
    it.set_plan({"next_action": "response"})
    assert it.until_done().text == "answer: find out"


def test_B71_done_waits_and_does_not_drive(client, world):
    it = runner(client, world, text("done"), timeout=0.1)
    with pytest.raises(TimeoutError, match="is ready after 0.1 s"):
        it.done()

    assert prompts(world) == []


def test_second_consumer_learns_that_the_turn_has_moved(client, world):
    one = runner(client, world, asks("a"), asks("b"), text("done"))
    loop = iter(one)
    next(loop)
    two = client.runner(run_id=one.run_id, timeout=PATIENCE)
    other = iter(two)
    assert [next(other).iteration, next(other).iteration] == [1, 2]

    with pytest.raises(StepRefused, match="at rev"):
        next(loop)


def test_messages_sent_beside_it_do_not_disturb_the_loop(client, world):
    it = runner(client, world, asks("a"), text("done"))
    for message in it:
        if message.asks:
            client.runner(run_id=it.run_id).steer("S")

    assert prompts(world)[1][-1] == "S"


def test_a_consumer_that_pushes_on_every_iteration_is_stopped_by_its_cap(client, world):
    it = runner(client, world, asks("a", tool="unsafe"), max_iterations=4)
    for message in it:
        results = it.generate_tool_response()
        it.push_messages(message, results) if message.iteration % 2 else it.push_messages(f"U{message.iteration}")

    assert (it.done().code, len(prompts(world))) == ("max_iterations", 4)
    assert max(world.tools.ran.values()) == 1
    assert len({tuple(one) for one in prompts(world)}) == 4
    check_all(world.store)


def test_a_cancelled_run_ends_the_loop(client, world):
    it = runner(client, world, asks("a"))
    for _ in it:
        it.cancel("enough")

    assert (it.done().disposition, it.done().detail, it.done().ok) == ("cancelled", "enough", False)


def test_B3_what_is_handed_in_is_copied(client, world):
    it = runner(client, world, text("done"))
    mine = [{"role": "user", "text": "U"}]
    it.push_messages(mine)
    mine[0]["text"] = "changed"
    list(it)

    assert prompts(world) == [["hi", "U"]]


def test_a_runner_is_made_of_a_text_or_of_a_run(client):
    with pytest.raises(TypeError, match="the text of a new turn, or the run_id"):
        client.runner("hi", run_id="r")
    with pytest.raises(TypeError):
        client.runner()


def test_plans_and_rounds_are_handed_out_as_messages(client, world):
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "unsafe"), plan_of("pure"))
    it = client.runner("hi", thread_id="t1", timeout=PATIENCE, strategy="plan_execute")
    seen = []
    for message in it:
        if message.plan and len(message.plan.commands) == 2:
            it.set_plan({"execution_commands": [one for one in message.plan.commands if one["tool_name"] == "pure"]})
        elif message.records:
            it.set_plan({"next_action": "response"})
        seen.append((message.plan is not None, [record["result"] for record in message.records or ()]))

    assert seen == [(True, []), (False, ["pure0"]), (False, [])]
    assert (it.done().ok, len(planned := world.rows("journal", kind="PlanCommitted"))) == (True, 2)
    assert planned[0]["body"]["text"] == plan_of("pure", "unsafe")
    check_all(world.store)


def test_new_runner_yields_the_round_that_is_held(client, world):
    change_agent(world, plan=PlanSpec())
    world.models.script = planner(plan_of("pure"))
    it = client.runner("hi", thread_id="t1", timeout=PATIENCE, strategy="plan_execute")
    for message in it:
        if message.records:
            break
    again = client.runner(run_id=it.run_id, timeout=PATIENCE)

    assert [(message.plan is not None, len(message.records or ())) for message in again] == [
        (False, 1), (True, 0), (False, 0),
    ]  # fmt: skip


def test_loop_can_request_a_summary(client, world):
    it = runner(client, world, asks("a"), text("done"))
    for _ in it:
        it.compact()

    assert world.row("threads")["compact_asked"] == 2
