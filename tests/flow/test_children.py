"""Sub-agents: a call that is answered by a run of its own, and the run that waits for it."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import Limits, SubAgent, ToolMode
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.errors import Conflict, InvalidDecision
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CancelTurn, Dispatch
from chordage.orchestrator.views.lookups import call_above, question_places
from support.family import Lines, ask, by_agent, change, settle_in
from support.hooks import before_tool, install
from support.invariants import check_all
from support.questions import GATE, approve, asks_once
from support.world import World

PURE = ("pure", {"n": 0})


def contents(world) -> list[tuple[str | None, str]]:
    return [(call["code"], call["content"]) for call in world.rows("calls")]


def test_a_call_of_a_sub_agent_is_a_turn_of_its_own_and_its_answer_the_result(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob", "who?")]]})
    turn = world.submit(tenant="acme", group=Group.CHORE)
    world.run_dry()

    child = by_agent(world)["bob"]
    (call,) = world.rows("calls")
    assert (child["thread_id"], child["text"], child["sender"]) == (f"child:{call['id']}", "who?", "self")
    assert (child["grp"], child["tenant"]) == ("chore", "acme")
    assert (call["status"], call["content"]) == ("succeeded", "bob[]")
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert world.tools.orders == [], "no tool worker has seen the call"
    check_all(world.store)


def test_a_run_that_waits_for_a_child_holds_nothing(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.submit()
    while not world.tools.orders:
        world.deliver(world.pending.pop(0))

    run = by_agent(world, "runs")["ada"]
    assert (run["status"], run["reason"], run["lease_until"]) == ("waiting", "suspended", None)
    assert list(world.locks.threads) == [by_agent(world)["bob"]["thread_id"]]
    world.run_dry()
    check_all(world.store)


def test_a_child_knows_its_tree(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]]})
    world.submit(thread="t1")
    world.run_dry()

    runs = by_agent(world, "runs")
    assert [runs["cleo"][name] for name in ("path", "root_thread", "root_run", "parent_run")] == [
        "ada/bob/cleo",
        "t1",
        runs["ada"]["id"],
        runs["bob"]["id"],
    ]
    assert contents(world) == [(None, "bob[cleo[]]"), (None, "cleo[]")]


def test_turn_that_waits_for_a_sub_agent_says_so_unless_a_person_is_asked(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    fates = [views.turn(world.store, turn).fate]
    while world.pending:
        world.deliver(world.pending.pop(0))
        fates.append(views.turn(world.store, turn).fate)
    lines = {line.agent: line.fate for line in views.turns(world.store)}

    assert list(dict.fromkeys(fates)) == [
        "queued, number 1 in the line of its thread", "active", "waiting for a sub-agent", "waiting for a decision",
    ]  # fmt: skip
    assert lines == {"ada": "waiting for a sub-agent", "bob": "waiting for a decision"}


def test_question_below_names_the_call_of_the_root_that_waits_for_it(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    (question,), runs = world.inbox(), by_agent(world, "runs")
    (place,) = question_places(world.store, [question["id"]], space=None).values()

    (of_root,) = [call["id"] for call in world.rows("calls") if call["run_id"] == runs["ada"]["id"]]
    assert (place.turn_id, place.call_above) == (turn, of_root)
    assert call_above(world.store, runs["cleo"]["id"], runs["ada"]["id"]) == of_root
    assert call_above(world.store, runs["ada"]["id"], runs["ada"]["id"]) is None


def test_what_a_tree_used_is_counted_into_its_root(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]]})
    world.submit()
    world.run_dry()

    used = {name: (run["input_tokens"], run["output_tokens"]) for name, run in by_agent(world, "runs").items()}
    assert used == {"cleo": (3, 2), "bob": (8 + 3, 6 + 2), "ada": (8 + 8 + 3, 6 + 6 + 2)}


def test_the_time_limit_of_a_run_counts_the_work_of_its_children_and_not_their_waiting(world):
    settle_in(world)
    change(world, "ada", limits=Limits(timeout=100))
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    world.models.before_reply = lambda prompt: world.clock.pass_by(20 if prompt.system == "bob" else 0)
    turn = world.submit()
    world.run_dry()
    world.clock.pass_by(10_000)
    approve(world, world.inbox()[0])

    run = by_agent(world, "runs")["ada"]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert run["code"] is None
    assert run["rested_ms"] == 10_000 * 1000, "the two model calls of the child are work of the tree"


def test_a_tree_that_works_for_too_long_is_stopped_at_its_root(world):
    settle_in(world)
    change(world, "ada", limits=Limits(timeout=30))
    world.models.script = Lines({"ada": [[ask("bob")], [ask("bob")]], "bob": [[PURE]]})
    world.models.before_reply = lambda prompt: world.clock.pass_by(20 if prompt.system == "bob" else 0)
    world.submit()
    world.run_dry()

    assert by_agent(world, "runs")["ada"]["code"] == "timeout"
    check_all(world.store)


def run_dry_parents_first(world) -> None:
    """The parent is suspended before a child starts."""
    while world.pending:
        world.pending.sort(key=lambda intent: isinstance(intent, Dispatch))
        world.deliver(world.pending.pop(0))


@pytest.mark.parametrize("run_dry", [World.run_dry, run_dry_parents_first], ids=["children first", "parents first"])
def test_several_children_and_a_tool_are_one_round_in_the_order_of_their_calls(world, run_dry):
    settle_in(world)
    change(world, "ada", agents=(SubAgent(agent="bob"), SubAgent(agent="cleo")))
    world.models.script = Lines({"ada": [[ask("bob"), PURE, ask("cleo")]]})
    world.submit()
    run_dry(world)

    assert contents(world) == [(None, "bob[]"), (None, "pure0"), (None, "cleo[]")]
    assert world.models.prompts[-1].said[-1].content == "cleo[]"
    assert len([prompt for prompt in world.models.prompts if prompt.system == "ada"]) == 2, (
        "no prompt had a placeholder"
    )
    check_all(world.store)


@pytest.mark.parametrize("run_dry", [World.run_dry, run_dry_parents_first], ids=["children first", "parents first"])
def test_a_parent_is_woken_once_however_many_children_it_has(world, run_dry):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob") for _ in range(7)]]})
    world.submit()
    run_dry(world)

    root = next(run for run in world.rows("runs") if run["agent"] == "ada")
    waits = world.rows("journal", run_id=root["id"], kind="RunWaiting")
    assert len(waits) <= 1
    assert root["children"] == 7
    check_all(world.store)


def test_in_sequence_one_child_comes_after_the_other(world):
    settle_in(world)
    change(world, "ada", tool_mode=ToolMode.SEQUENTIAL, agents=(SubAgent(agent="bob"), SubAgent(agent="cleo")))
    world.models.script = Lines({"ada": [[PURE, ask("bob"), ("pure", {"n": 1}), ask("cleo"), ("pure", {"n": 2})]]})
    order: list[str] = []
    world.models.before_reply = lambda prompt: order.append(prompt.system)
    world.tools.before = lambda call: order.append(f"pure{call.arguments['n']}")
    world.submit()
    world.run_dry()

    assert order == ["ada", "pure0", "bob", "pure1", "cleo", "pure2", "ada"]
    check_all(world.store)


def test_failed_child_is_an_error_result_and_the_run_continues(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE], [PURE], [PURE]]})
    change(world, "bob", limits=Limits(max_rounds=2))
    turn = world.submit()
    world.run_dry()

    ((code, content),) = [got for got in contents(world) if got[0] and got[0].startswith("child")]
    assert code == "child_stopped"
    assert "max_rounds" in content
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_child_whose_agent_broke_meanwhile_fails_with_the_reason(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    turn = world.submit()
    world.deliver(world.pending.pop(0))
    world.deliver(world.pending.pop(0))
    del world.agents.agents["bob"]
    for _ in range(20):
        while world.pending:
            try:
                world.deliver(world.pending.pop(0))
            except Exception:
                continue
        world.forget_the_dead()
        world.sweep(40)

    (got,) = contents(world)
    assert got[0] == "child_failed"
    assert "no agent 'bob'" in got[1]
    assert world.row("turns", id=turn)["disposition"] == "answered"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "message"), ({"message": " "}, "not blank"), ({"message": "a\x00b", "x": 1}, "no parameter 'x'")],
)
def test_sub_agent_with_invalid_arguments_is_not_started(world, arguments, said):
    settle_in(world)
    world.models.script = Lines({"ada": [[("ask_bob", arguments)]]})
    world.submit()
    world.run_dry()

    ((code, content),) = contents(world)
    assert code == "invalid_arguments"
    assert said in content
    assert len(world.rows("turns")) == 1


def test_model_gets_an_error_for_a_missing_sub_agent(world):
    settle_in(world)
    change(world, "ada", agents=(SubAgent(agent="nobody"),))
    world.models.script = Lines({"ada": [[ask("nobody")]]})
    world.submit()
    world.run_dry()

    ((code, content),) = contents(world)
    assert code == "agent_unavailable"
    assert "no agent 'nobody'" in content


def test_agent_that_calls_itself_reaches_the_depth_limit_and_continues(world):
    settle_in(world, "ada")
    change(world, "ada", limits=Limits(max_depth=3))
    world.models.script = Lines({"ada": [[ask("ada")]]})
    turn = world.submit()
    world.run_dry()

    assert len(world.rows("runs")) == 4
    refused = [content for code, content in contents(world) if code == "max_depth"]
    assert [("limits.max_depth is 3" in content) for content in refused] == [True]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_no_sub_agent_may_go_deeper_than_its_ancestors_allow(world):
    settle_in(world)
    change(world, "ada", limits=Limits(max_depth=1))
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]]})
    world.submit()
    world.run_dry()

    assert [code for code, _ in contents(world)] == [None, "max_depth"]
    assert sorted(by_agent(world)) == ["ada", "bob"]


def test_run_calls_at_most_its_number_of_sub_agents_over_all_rounds(world):
    settle_in(world)
    change(world, "ada", limits=Limits(max_children=3))
    world.models.script = Lines({"ada": [[ask("bob")] * 2, [ask("bob")] * 2]})
    world.submit()
    world.run_dry()

    assert [code for code, _ in contents(world)] == [None, None, None, "max_children"]
    assert "limits.max_children allows, 3" in contents(world)[-1][1]
    check_all(world.store)


# questions of children, and about them


def test_a_question_three_deep_is_answered_in_the_inbox_and_the_answer_comes_up(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()

    (question,) = world.inbox()
    assert question["agent"] == "cleo"
    assert {run["status"] for run in world.rows("runs")} == {"waiting"}
    approve(world, question)

    assert contents(world) == [(None, "bob[cleo[pure0]]"), (None, "cleo[pure0]"), (None, "pure0")]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def the_wait(world, agent: str = "bob") -> dict[str, object]:
    """The suspension that this agent's child-to-be answers."""
    (found,) = [row for row in world.rows("suspensions", status="open") if row["tool"] == f"ask_{agent}"]
    return found


def test_result_of_a_sub_agent_cannot_be_supplied_from_outside(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()

    with pytest.raises(InvalidDecision, match="deny it and the sub-agent is cancelled"):
        world.decide(DecisionRequest(target=the_wait(world)["id"], action=Action.RESUME, payload="me"))


def test_denial_of_the_call_cancels_the_child_and_its_descendants(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    world.decide(DecisionRequest(target=the_wait(world)["id"], action=Action.CANCEL, reason="too slow"))
    assert [intent.turn_id for intent in world.pending if isinstance(intent, CancelTurn)] == [
        by_agent(world)["bob"]["id"]
    ]
    world.run_dry()

    assert {name: row["disposition"] for name, row in by_agent(world).items()} == {
        "ada": "answered",
        "bob": "cancelled",
        "cleo": "cancelled",
    }
    assert contents(world)[0] == (
        "denied",
        "The sub-agent was cancelled before it answered. The reason given: too slow",
    )
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_a_child_that_takes_too_long_is_waited_for_no_longer(world):
    settle_in(world)
    change(world, "ada", agents=(SubAgent(agent="bob", timeout=60),))
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    world.sweep(61)
    world.run_dry()

    assert contents(world)[0][0] == "denied"
    assert by_agent(world)["bob"]["disposition"] == "cancelled"
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_a_child_that_is_cancelled_by_itself_is_an_error_result(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    turn = world.submit()
    world.run_dry()
    world.pending += stages.cancel_turn(world.runtime, by_agent(world)["bob"]["id"], "no need")[1]
    world.run_dry()

    assert contents(world)[0] == ("child_cancelled", "The sub-agent was cancelled (no need).")
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_a_child_that_is_cancelled_before_it_starts_is_an_error_result(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    turn = world.submit()
    while "bob" not in by_agent(world):
        world.deliver(world.pending.pop(0))
    world.pending += stages.cancel_turn(world.runtime, by_agent(world)["bob"]["id"], "no need")[1]
    world.run_dry()

    assert contents(world) == [("child_cancelled", "The sub-agent was cancelled (no need).")]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)


def test_a_late_denial_finds_the_answer_there(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    world.tools.asks = asks_once(0)
    world.submit()
    world.run_dry()
    wait = the_wait(world)
    approve(world, world.inbox()[0])

    with pytest.raises(Conflict, match="was answered by its sub-agent at "):
        world.decide(DecisionRequest(target=wait["id"], action=Action.CANCEL))


def test_a_later_message_on_the_root_cancels_the_whole_tree(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[PURE]]})
    world.tools.asks = asks_once(0)
    first = world.submit()
    world.run_dry()
    world.models.script = Lines()
    world.submit("something else")
    world.run_dry()

    assert world.row("turns", id=first)["disposition"] == "superseded"
    assert {row["disposition"] for row in world.rows("turns") if row["parent_run"]} == {"cancelled"}
    assert world.inbox() == []
    check_all(world.store)


def test_later_message_waits_while_children_work_without_a_question(world):
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[PURE]]})
    first = world.submit()
    while not world.tools.orders:
        world.deliver(world.pending.pop(0))
    assert world.row("runs", agent="ada")["status"] == "waiting"
    second = world.submit("and then")
    world.run_dry()

    assert [world.row("turns", id=turn)["disposition"] for turn in (first, second)] == ["answered", "answered"]
    check_all(world.store)


def test_sub_agent_call_may_need_approval_and_then_gets_the_edited_message(world):
    settle_in(world)
    install(world, before_tool(GATE))
    world.models.script = Lines({"ada": [[ask("bob", "go")]]})
    turn = world.submit()
    world.run_dry()
    assert sorted(by_agent(world)) == ["ada"], "no child starts before the approval"
    approve(world, world.inbox()[0], edited_args={"message": "go slowly"})

    assert by_agent(world)["bob"]["text"] == "go slowly"
    assert contents(world) == [(None, "bob[]")]
    assert world.row("turns", id=turn)["disposition"] == "answered"
    check_all(world.store)
