"""Tools of the caller: offered in its turn alone, suspended, and answered by a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import ToolMode, WhenBusy
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.client_tools import WITH_CALLER, ClientTool
from chordage.orchestrator.core.errors import Conflict, InvalidDecision, InvalidMessage
from chordage.orchestrator.core.model import AssistantSays, ToolSays, UserSays
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.core.verdicts import Block, SuspendCall
from chordage.orchestrator.gateways import schemas
from support.fakes import asking, spoken
from support.hooks import before_tool, install
from support.invariants import check_all
from support.world import Died, a_persons_answer

PICK = ClientTool(
    name="pick",
    description="Have the person pick a colour.",
    schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
)


def rounds(*asked: tuple[str, dict[str, object]]):
    """One round of these calls, then an answer with what came back."""

    def reply(prompt):
        last = max(n for n, said in enumerate(prompt.said) if isinstance(said, UserSays) and not is_note(said))
        since = prompt.said[last + 1 :]
        if not any(isinstance(said, AssistantSays) for said in since):
            return asking(*asked)
        return spoken("done: " + " ".join(said.content for said in since if isinstance(said, ToolSays)))

    return reply


def die(world, at, *, before):
    """Run until that commit, and lose everything that is not in the database."""
    world.die_at, world.die_before = world.commits + at, before
    try:
        world.run_dry()
    except Died:
        world.pending.clear()
        world.forget_the_dead()
    world.die_at = None


def result(row, payload, **more) -> DecisionRequest:
    return DecisionRequest(target=row["call_id"], action=Action.RESUME, payload=payload, **more)


def answer(world) -> str:
    return views.turn(world.store, world.rows("turns")[-1]["id"]).answer


def by_tool(world, tool):
    return next(row for row in world.rows("calls") if row["tool"] == tool)


def test_call_is_offered_suspended_and_answered_by_its_caller(world):
    world.models.script = rounds(("pure", {"n": 1}), ("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()

    assert [offer.name for offer in world.models.prompts[0].offers][-1] == "pick"
    assert len(world.models.prompts) == 1, "the model is not asked while the caller works"
    assert (world.row("runs")["status"], world.row("runs")["lease_until"]) == ("waiting", None)
    (asked,) = world.inbox()
    assert (asked["why"], asked["tool"], by_tool(world, "pick")["placed"]) == ("client_tool", "pick", WITH_CALLER)

    world.decide(result(asked, {"colour": "red"}))
    world.run_dry()

    assert answer(world) == 'done: pure1 {"colour": "red"}'
    assert sum(world.tools.ran.values()) == 1, "no worker has run the caller's tool"
    check_all(world.store)


def test_result_that_is_sent_again_is_the_same_decision(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    (asked,) = world.inbox()

    first, second = world.decide(result(asked, "red")), world.decide(result(asked, "red"))
    world.run_dry()
    third = world.decide(result(asked, "red"))

    assert [one.duplicate for (one,) in (first, second, third)] == [False, True, True]
    assert {one.decision_id for (one,) in (first, second, third)} == {first[0].decision_id}
    with pytest.raises(Conflict):
        world.decide(result(asked, "blue"))
    assert answer(world) == "done: red"


def test_tools_belong_to_their_turn_alone(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    world.decide(result(world.inbox()[0], "red"))
    world.run_dry()
    world.submit("and again")
    world.run_dry()

    assert "pick" not in [offer.name for offer in world.models.prompts[-1].offers]
    assert (by_tool(world, "pick")["status"], world.rows("calls")[-1]["code"]) == ("succeeded", "unknown_tool")
    assert world.inbox() == []


def test_arguments_are_checked_before_the_caller_is_asked(world):
    world.models.script = rounds(("pick", {"n": "two"}))
    world.submit(client_tools=(PICK,))
    world.run_dry()

    assert world.row("calls")["code"] == "invalid_arguments"
    assert "n: 'two' is not of type 'integer'" in answer(world)


def test_caller_that_cannot_carry_a_call_out_says_why(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    world.decide(DecisionRequest(target=world.inbox()[0]["id"], action=Action.CANCEL, reason="the page is closed"))
    world.run_dry()

    assert answer(world) == "done: The caller has not carried this call out. The reason given: the page is closed"


def test_model_reads_the_beginning_of_a_long_result_and_the_rest_is_kept(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    world.decide(result(world.inbox()[0], "x" * 200_000))
    world.run_dry()

    assert len(answer(world)) < 66_000
    assert "first 65536 of 200000 characters" in answer(world)
    assert len(by_tool(world, "pick")["full_result"]) == 200_000
    assert "read_result" in [offer.name for offer in world.models.prompts[-1].offers]


def test_call_of_a_caller_that_never_comes_back_expires(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(replace(PICK, expires_in=60),))
    world.run_dry()
    world.sweep(61)
    world.run_dry()

    assert answer(world).endswith("has not carried this call out. The reason given: No answer came in time.")


def test_result_takes_no_other_arguments(world):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()

    with pytest.raises(InvalidDecision, match="the caller carries 'pick' out"):
        world.decide(result(world.inbox()[0], "red", edited_args={"n": 3}))


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ((replace(PICK, name="pure"),), "has a tool 'pure' of its own"),
        ((replace(PICK, name="read_result"),), "has a tool 'read_result' of its own"),
        ((replace(PICK, name="no such name"),), "give 1 to 64 letters"),
        ((PICK, PICK), "two tools are called 'pick'"),
        ((replace(PICK, schema={"type": "array"}),), "its arguments are no object but 'array'"),
        ((replace(PICK, schema={"type": "object", "properties": 7}),), "its schema is none"),
        ((replace(PICK, schema={"allOf": [{}] * 4000}),), "have 4002 lists and tables, the limit is 4000"),
        ((replace(PICK, schema={"$schema": 7}),), "its schema is none"),
        ((replace(PICK, schema={"enum": ["x" * 70_000]}),), "client_tools has 70"),
        ((replace(PICK, description="x" * 5000),), "more than 4000 characters"),
        ((replace(PICK, expires_in=0.0),), "more than 0 seconds"),
        ((replace(PICK, expires_in=1e300),), "is 1e.300: give more than 0 seconds and at most 3"),
        ((replace(PICK, expires_in=float("nan")),), "is nan: give more than 0"),
        (tuple(replace(PICK, name=f"t{n}") for n in range(129)), "the limit is 128"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(world, tools, words):
    with pytest.raises(InvalidMessage, match=words) as refusal:
        world.submit(client_tools=tools)

    assert refusal.value.field == "client_tools"
    assert world.rows("turns") == []


def test_schema_that_was_checked_is_not_checked_again(world, monkeypatch):
    schema = {"type": "object", "properties": {"once": {"type": "string"}}}
    world.submit(client_tools=(replace(PICK, schema=schema),))
    monkeypatch.setattr(schemas, "fault_of_tool", None)
    world.submit(client_tools=(replace(PICK, schema=schema),))


def test_planning_agent_takes_none(world):
    with pytest.raises(InvalidMessage, match="makes plans"):
        world.submit(client_tools=(PICK,), strategy="plan_execute")


def test_tool_that_the_agent_has_been_given_since_comes_first(world, monkeypatch):
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    specs = world.tools.specs
    own = {"pick": replace(PICK.spec, description="ours")}
    monkeypatch.setattr(world.tools, "specs", lambda agent: {**specs(agent), **own})
    world.run_dry()

    assert [offer.description for offer in world.models.prompts[0].offers if offer.name == "pick"] == ["ours"]
    assert answer(world) == "done: pick2"


def test_permission_comes_before_the_caller(world):
    install(world, before_tool(SuspendCall(prompt="May it?")))
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    (asked,) = world.inbox()
    assert asked["why"] == "permission"
    world.decide(DecisionRequest(target=asked["id"], action=Action.RESUME))
    world.run_dry()

    (asked,) = world.inbox()
    assert asked["why"] == "client_tool"
    assert sum(world.tools.ran.values()) == 0
    world.decide(result(asked, "red"))
    world.run_dry()
    assert answer(world) == "done: red"
    check_all(world.store)


def test_permission_with_other_arguments_is_checked_against_the_tool_of_the_caller(world, monkeypatch):
    monkeypatch.setattr(world.tools, "invalid", lambda agent, tool, arguments: f"There is no tool {tool!r}.")
    install(world, before_tool(SuspendCall(prompt="May it?")))
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()
    target = world.inbox()[0]["id"]

    with pytest.raises(InvalidDecision, match="n: 'two' is not of type 'integer'"):
        world.decide(DecisionRequest(target=target, action=Action.RESUME, edited_args={"n": "two"}))
    world.decide(DecisionRequest(target=target, action=Action.RESUME, edited_args={"n": 9}))
    world.run_dry()

    assert (world.inbox()[0]["why"], by_tool(world, "pick")["arguments"]) == ("client_tool", {"n": 9})


def test_plugin_may_block_it(world):
    install(world, before_tool(Block("not here")))
    world.models.script = rounds(("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    world.run_dry()

    assert answer(world) == "done: not here"


def test_sequential_agent_asks_the_caller_one_call_after_the_other(world):
    world.agents.agents["ada"] = replace(world.agents.agents["ada"], tool_mode=ToolMode.SEQUENTIAL)
    world.models.script = rounds(("pure", {"n": 0}), ("pick", {"n": 1}), ("pure", {"n": 2}), ("pick", {"n": 3}))
    world.submit(client_tools=(PICK,))
    world.run_dry()

    ran = []
    for colour in ("red", "blue"):
        (asked,) = world.inbox()
        ran.append((sum(world.tools.ran.values()), world.rows("calls", id=asked["call_id"])[0]["arguments"]))
        world.decide(result(asked, colour))
        world.run_dry()

    assert ran == [(1, {"n": 1}), (2, {"n": 3})]
    assert answer(world) == "done: pure0 red pure2 blue"
    check_all(world.store)


def test_steered_message_may_bring_more_tools(world):
    def steer(_prompt):
        world.models.before_reply = lambda _prompt: None
        other = replace(PICK, name="choose")
        world.submit("more", when_busy=WhenBusy.STEER, client_tools=(other,))

    world.models.before_reply = steer
    world.models.script = lambda prompt: spoken("done")
    world.submit(client_tools=(PICK,))
    world.run_dry()

    assert [offer.name for offer in world.models.prompts[-1].offers][-2:] == ["pick", "choose"]


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("decided", [False, True], ids=["asked", "decided"])
def test_process_that_dies_at_any_commit_leaves_one_question_and_uses_its_answer_once(world, at, before, decided):
    world.models.script = rounds(("unsafe", {"n": 1}), ("pick", {"n": 2}))
    world.submit(client_tools=(PICK,))
    if decided:
        world.run_dry()
        world.decide(a_persons_answer(world.inbox()[0]))
    die(world, at, before=before)
    world.recover()

    of_caller = world.rows("suspensions", why="client_tool")
    assert (len(of_caller), len(world.rows("decisions", suspension_id=of_caller[0]["id"]))) == (1, 1)
    assert answer(world).endswith("true")
    check_all(world.store)
