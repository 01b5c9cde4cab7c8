"""Where the calls of a round run: in the process of their run, in one message together, or in a message each.

Wherever they run: no result is lost or doubled when the process dies at any commit, and a call that overstays holds up
no other.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import AgentSpec, Effect, Limits, Placement, ToolMode
from chordage.orchestrator.core.approvals import Question, ResumeMode, Why
from chordage.orchestrator.core.intents import CallHere, CallTools
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.gateways.ports import CallOrder, ToolOutcome
from support.fakes import asking, rounds_of, spoken
from support.invariants import check_all
from support.placements import place_calls
from support.world import Died, Header, World

HERE, TOGETHER, SPREAD = Placement.HERE, Placement.TOGETHER, Placement.SPREAD
_QUESTION = Question(why=Why.TOOL, prompt="sure?", resume_mode=ResumeMode.PASS_TO_TOOL)
REPEATABLE = ["pure", "idempotent"]
DAY = 86_400


def placed(world: World, placement: Placement, **more: Any) -> None:
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], placement=placement, **more)


def commits_of(world: World) -> int:
    before = world.commits
    world.run_dry()
    return world.commits - before


def headers(world: World) -> list[Header]:
    return [intent for intent in world.pending if isinstance(intent, Header)]


def until_sent(world: World) -> None:
    """Until the calls of a round are on their way."""
    while not headers(world):
        world.deliver(world.pending.pop(0))


@pytest.mark.parametrize(
    ("placement", "tool", "commits"),
    [
        (SPREAD, "pure", 1 + 2 * (1 + 3) + 1),
        (TOGETHER, "pure", 1 + 2 * (1 + 1) + 1),
        (HERE, "idempotent", 1 + 2 * (1 + 1) + 1),
        (HERE, "pure", 1 + 2 * 1 + 1),
        (HERE, "unsafe", 1 + 2 * (1 + 2 * 3) + 1),
    ],
)  # fmt: skip
def test_round_costs_a_commit_for_its_reply_and_one_for_what_is_settled_at_once(
    world: World, placement: Placement, tool: str, commits: int
) -> None:
    """Beside the start and the last reply. Pure calls that stay are settled with their reply."""
    placed(world, placement)
    world.models.script = rounds_of(3, rounds=2, tool=tool)
    turn = world.submit()

    assert commits_of(world) == commits
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert {call["placed"] for call in world.rows("calls")} <= {f"{placement.value}: as set", "here"}
    assert set(world.tools.ran.values()) == {1}
    check_all(world.store)


def test_round_that_stays_is_in_the_history_as_any_other(world: World) -> None:
    said = []
    for placement in Placement:
        placed(world, placement)
        world.models.prompts.clear()
        world.submit(thread=placement.value)
        world.run_dry()
        said.append(world.models.prompts[-1].said)
    kinds = [[row["kind"] for row in world.rows("journal", thread_id=placement.value)] for placement in Placement]

    assert all(one == said[0] for one in said)
    assert all(one == kinds[0] for one in kinds)


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("effect", ["pure", "idempotent", "unsafe"])
@pytest.mark.parametrize("placement", list(Placement))
def test_turns_survive_death_at_any_commit_wherever_their_calls_run(
    world: World, placement: Placement, effect: str, before: bool
) -> None:
    """A turn for each commit that one has, until one ends before its process would die."""
    place_calls(world, placement)
    world.models.script = rounds_of(2, rounds=2, tool=effect)
    commits = next(at for at in count(1) if not dies_at(world, at, before=before, effect=effect))

    assert commits > 4
    check_all(world.store)


def dies_at(world: World, at: int, *, before: bool, effect: str) -> bool:
    """Whether the turn had that commit. It is answered, and only what was cut is done again."""
    prompts, asked, ran = len(world.models.prompts), len(world.rows("suspensions")), world.tools.ran.total()
    turn = world.submit(thread=f"t{at}")
    world.die_at, world.die_before = world.commits + at, before
    with contextlib.suppress(Died):
        world.run_dry()
    world.die_at, died = None, world.dead
    if died:
        world.pending.clear()
        world.forget_the_dead()
    world.recover()
    asked = len(world.rows("suspensions")) - asked
    assert world.row("turns", id=turn)["disposition"] == "answered", at
    assert len(world.models.prompts) - prompts <= 3 + asked + 1, f"more model calls than the one that was cut: {at}"
    if effect == "unsafe":
        assert max(world.tools.ran.values()) == 1, at
    else:
        assert asked == 0, at
        assert {call["status"] for call in world.rows("calls", thread_id=f"t{at}")} == {"succeeded"}
        assert world.tools.ran.total() - ran <= 4 + 2, f"only the round that was cut ran again: {at}"
    return died


def test_model_that_is_asked_again_may_ask_for_something_else(world: World) -> None:
    """A pure call ran, and died with its reply. Nothing of it is on record, so nothing refers to it."""
    replies = iter([asking(("pure", {"n": 1})), asking(("pure", {"n": 2}), ids=("other",)), spoken("done")])
    placed(world, HERE)
    world.models.script = lambda _prompt: next(replies)
    world.tools.before = lambda order: _kill_once(world, order)
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    assert world.rows("calls") == []
    world.recover()

    assert [call["arguments"] for call in world.rows("calls")] == [{"n": 2}]
    assert world.row("calls")["placed"] == "here: as set", "recorded before it ran"
    assert world.row("turns", id=turn)["disposition"] == "answered"


def _kill_once(world: World, order: CallOrder) -> None:
    if order.arguments["n"] == 1:
        raise world.kill()


def test_idempotent_call_is_on_record_before_it_runs(world: World) -> None:
    """The model that is asked again may ask with another id, and so with another key: a second effect."""
    placed(world, HERE)
    world.models.script = rounds_of(2, tool="idempotent")
    seen: list[str] = []
    world.tools.before = lambda order: seen.append(str(world.row("calls", id=order.call_id)["status"]))
    world.submit()
    world.run_dry()

    assert seen == ["new", "new"]


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_call_that_overstays_is_waited_for_and_the_rest_is_sent(world: World, effect: str) -> None:
    placed(world, HERE)
    world.models.script = rounds_of(4, tool=effect)
    world.tools.overstays = lambda order: order.arguments["n"] == 1
    turn = world.submit()
    until_sent(world)

    assert [header.call_ids for header in headers(world)] == [(call["id"],) for call in world.rows("calls")[2:]], (
        "those behind it"
    )
    statuses = [call["status"] for call in world.rows("calls")]
    assert statuses == ["succeeded", {"pure": "running", "idempotent": "new"}[effect], "new", "new"]
    (waiting,) = [intent for intent in world.pending if isinstance(intent, CallHere)]
    assert waiting.call_ids == (world.rows("calls")[1]["id"],)

    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.ran.total() == 4
    check_all(world.store)


@pytest.mark.parametrize("effect", REPEATABLE)
def test_process_that_dies_in_a_call_that_overstays_leaves_it_to_another(world: World, effect: str) -> None:
    placed(world, HERE)
    world.models.script = rounds_of(2, tool=effect)
    world.tools.overstays = lambda order: order.arguments["n"] == 0 and order.attempt == 1
    died = []

    def die_once(order: CallOrder) -> None:
        if order.arguments["n"] == 0 and not died:
            died.append(order.idempotency_key)
            raise world.kill()

    world.tools.before = die_once
    turn = world.submit()
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.ran[died[0]] == 2, "again, with the same key"
    assert len(world.models.prompts) == 2, "the reply was on record"
    check_all(world.store)


def test_late_result_of_a_call_that_overstayed_is_refused(world: World) -> None:
    """Its run was cancelled meanwhile."""
    placed(world, HERE)
    world.models.script = rounds_of(1)
    world.tools.overstays = lambda _order: True
    turn = world.submit()
    while not any(isinstance(intent, CallHere) for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.pending += stages.cancel_turn(world.runtime, turn)[1]
    world.run_dry()

    assert world.row("calls")["status"] == "cancelled"
    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    check_all(world.store)


def test_run_cancelled_while_its_calls_run_before_their_reply_records_nothing(world: World) -> None:
    placed(world, HERE)
    turn = world.submit()

    def cancelled(_order: CallOrder) -> None:
        with world.as_another_process():
            world.pending += stages.cancel_turn(world.runtime, turn)[1]

    world.tools.before = cancelled
    world.run_dry()

    assert world.rows("calls") == []
    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    check_all(world.store)


@pytest.mark.parametrize("placement", [HERE, TOGETHER])
@pytest.mark.parametrize("effect", REPEATABLE)
def test_call_that_asks_a_question_waits_for_its_answer_wherever_it_ran(
    world: World, placement: Placement, effect: str
) -> None:
    placed(world, placement)
    world.models.script = rounds_of(2, tool=effect)
    world.tools.asks = lambda order: None if order.decision is not None or order.arguments["n"] else _QUESTION
    turn = world.submit()
    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert {call["status"] for call in world.rows("calls")} == {"succeeded"}
    assert len(world.rows("suspensions")) == 1
    check_all(world.store)


def test_calls_that_leave_are_sent_before_those_that_stay_run(world: World) -> None:
    placed(world, SPREAD, placements={"pure": HERE})
    world.models.script = _mixed
    turn = world.submit()
    world.deliver(world.pending.pop(0))
    world.deliver(world.pending.pop(0))

    assert [type(intent) for intent in world.pending] == [CallTools, CallHere]
    world.run_dry()
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert {call["tool"]: call["placed"] for call in world.rows("calls")} == {
        "pure": "here: as set", "unsafe": "spread: as set",
    }  # fmt: skip
    check_all(world.store)


def _mixed(prompt: Any) -> Any:
    return spoken("done") if len(prompt.said) > 1 else asking(("pure", {"n": 0}), ("unsafe", {}), ("pure", {"n": 1}))


@pytest.mark.parametrize("last", [CallHere, Header])
def test_mixed_round_is_committed_by_whichever_part_ends_last(world: World, last: type) -> None:
    placed(world, SPREAD, placements={"pure": HERE})
    world.models.script = _mixed
    world.submit()
    until_sent(world)
    world.pending.sort(key=lambda intent: isinstance(intent, last))
    world.run_dry()

    assert world.row("turns")["disposition"] == "answered"
    assert len(world.models.prompts) == 2
    check_all(world.store)


def test_step_that_killed_a_worker_does_not_keep_its_calls(world: World) -> None:
    """A tool that ends its process would end one that holds many runs, again and again."""
    _short(world)
    world.models.script = rounds_of(2)
    world.submit()
    world.tools.before = lambda _order: _die(world)
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    world.tools.before = lambda _order: None
    world.recover()

    assert {call["placed"] for call in world.rows("calls")} == {"together: a worker died in this step"}


def _die(world: World) -> None:
    raise world.kill()


def _short(world: World, seconds: float = 0.0002) -> None:
    for effect in Effect:
        world.runtime.durations.note("ada", effect.value, seconds)


@pytest.mark.parametrize(
    ("agent", "where"),
    [
        ({}, "here"),
        ({"tool_mode": ToolMode.SEQUENTIAL}, None),
        ({"limits": Limits(timeout=60)}, "here"),
        ({"limits": Limits(timeout=0.09)}, "here: takes 0.2 ms"),
    ],
)  # fmt: skip
def test_short_tools_stay_by_themselves(world: World, agent: dict[str, Any], where: str | None) -> None:
    _short(world)
    placed(world, Placement.AUTO, **agent)
    world.submit()
    world.run_dry()

    assert {call["placed"] for call in world.rows("calls")} == {where}
    assert world.row("turns")["disposition"] == "answered"


def test_measured_time_of_a_call_decides_where_the_next_one_runs(world: World) -> None:
    seconds = iter([0.001, 0.2, 0.001])
    run = world.tools.run

    def timed(agent: AgentSpec, order: CallOrder, **more: Any) -> ToolOutcome:
        return replace(run(agent, order, **more), seconds=next(seconds))

    world.tools.run = timed  # type: ignore[method-assign]
    for number in range(3):
        world.models.script = rounds_of(1)
        world.submit(thread=f"t{number}")
        world.run_dry()

    assert [call["placed"] for call in world.rows("calls")] == [
        "spread: not measured yet", "here: 200.0 ms", "together: takes 40.8 ms",
    ]  # fmt: skip


def test_plugin_that_reads_results_gets_them_before_they_are_recorded(world: World) -> None:
    """So its calls do not stay by themselves, and where they are made to, they are carried out one by one."""
    heard: list[str] = []

    class Plugins:
        ids = ("listener",)

        def listens(self, hook: Hook) -> bool:
            return hook is Hook.AFTER_TOOL_EXECUTE

        def ask(self, hook: Hook, context: Any) -> list[Any]:
            if hook is Hook.AFTER_TOOL_EXECUTE:
                heard.append(context.outcome.content)
            return []

    world.runtime = replace(world.runtime, plugin_sets=lambda _agent: Plugins())
    _short(world)
    for placement in (Placement.AUTO, HERE):
        placed(world, placement)
        world.submit(thread=placement.value)
        world.run_dry()

    assert heard == ["pure0", "pure1", "pure0", "pure1"]
    assert [call["placed"] for call in world.rows("calls")] == [
        *["together: a plugin reads its result"] * 2, *["here: as set"] * 2,
    ]  # fmt: skip


def test_watchers_hear_of_the_reply_before_its_calls(world: World) -> None:
    placed(world, HERE)
    world.models.script = rounds_of(1)
    world.submit()
    world.run_dry()

    kinds = [kind for _run, kind, _data in world.events.seen]
    assert kinds[:4] == ["run.started", "model.replied", "tool.started", "tool.settled"]


def test_durations_reach_other_processes_through_the_database(world: World) -> None:
    here, other = world.runtime, replace(world.runtime, durations=type(world.runtime.durations)())
    other.durations.note("ada", "slow", 0.4)
    stages.share_durations(other)
    assert here.durations.of("ada", "slow") is None
    stages.share_durations(here)

    known = here.durations.of("ada", "slow")
    assert known is not None
    assert known.mean == pytest.approx(0.4)
    before = world.statements
    stages.share_durations(other)
    assert world.statements == before, "nothing new was measured or asked for"


def test_durations_that_were_not_written_for_a_month_are_forgotten(world: World) -> None:
    """Of tools and agents that exist no more. One that is still called is stored again by its next call."""
    here = world.runtime
    for tool in ("given up", "still called"):
        here.durations.note("ada", tool, 0.4)
    stages.share_durations(here)
    world.clock.pass_by(29 * DAY)
    here.durations.note("ada", "other", 0.4)
    stages.share_durations(here)
    assert tools_on_record(world) == {"given up", "still called", "other"}

    world.clock.pass_by(2 * DAY)
    here.durations.note("ada", "newest", 0.4)
    stages.share_durations(here)
    assert tools_on_record(world) == {"other", "newest"}
    here.durations.note("ada", "still called", 0.4)
    stages.share_durations(here)

    assert tools_on_record(world) == {"other", "newest", "still called"}


def tools_on_record(world: World) -> set[object]:
    return {row["tool"] for row in world.rows("tool_durations")}
