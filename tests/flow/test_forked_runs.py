"""A run that is forked at a step: nothing of its source happens again, whatever dies and wherever calls run."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import AgentSpec, Placement, SubAgent, ToolMode, WhenBusy
from chordage.orchestrator.core.arrivals import Overflow, QueueBound
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound, QueueFull
from chordage.orchestrator.core.forking import ALL, HELD_BACK, NOT_RUN_IN_FORK
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import AssistantSays, Prompt, Reply, ToolSays, UserSays
from chordage.orchestrator.core.stepping import Control
from chordage.orchestrator.core.transcript import is_note
from chordage.orchestrator.store import schema
from chordage.orchestrator.views.runs import InferenceStep
from support.fakes import asking, rounds_of, spoken
from support.invariants import check_all
from support.placements import place_calls
from support.questions import approve, asks_of, asks_once
from support.world import Died, World

EFFECTFUL = ("unsafe", "idempotent", "reconcilable")
ROUNDS = 4


def source(world: World, tool: str = "unsafe", rounds: int = ROUNDS, width: int = 2, **more: object) -> str:
    """A finished run of so many rounds."""
    world.models.script = numbered(tool, rounds, width)
    turn = world.submit("hello", **more)
    world.run_dry()
    return str(world.row("turns", id=turn)["run_id"])


def numbered(tool: str, rounds: int, width: int = 2, offset: int = 0):
    """Each round asks for other numbers, so that no two calls are alike."""

    def reply(prompt: Prompt) -> Reply:
        done = replies_in(prompt)
        if done < rounds:
            calls = [(tool, {"n": 10 * done + n + offset}) for n in range(width)]
            return asking(*calls, ids=tuple(f"r{done}c{n}" for n in range(width)))
        results = " ".join(said.content for said in prompt.said if isinstance(said, ToolSays))
        return spoken(f"{prompt.system or 'done'}: [{results}]")

    return reply


def replies_in(prompt: Prompt) -> int:
    """Since the last message."""
    message = max(place for place, said in enumerate(prompt.said) if isinstance(said, UserSays) and not is_note(said))
    return sum(isinstance(said, AssistantSays) for said in prompt.said[message:])


def fork(world: World, run_id: str, step: int, *, name: str | None = None, **edits: object) -> str:
    """The turn of the fork, which is not started yet."""
    world.revive()
    with world.as_another_process():
        request = stages.fork_request(
            world.runtime, run_id, step, stages.ForkEdits(**edits), space="api", source="test", name=name
        )
        made, intents = stages.fork_run(world.runtime, request)
    world.pending += intents
    assert made.turn_id is not None
    return made.turn_id


def run_of(world: World, turn_id: str) -> views.RunView:
    return views.run(world.store, str(world.row("turns", id=turn_id)["run_id"]))


def calls_of(world: World, run_id: str) -> list[dict[str, object]]:
    rows = world.rows("calls", run_id=run_id)
    return sorted(rows, key=lambda row: (row["step"], row["place"]))


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("carries", [False, True], ids=["sent", "carried"])
@pytest.mark.parametrize("tool", EFFECTFUL)
def test_a_fork_at_round_two_of_four_with_one_edit_has_no_effect(world: World, tool: str, carries: bool) -> None:
    run_id = source(world, tool)
    ledger, asked = dict(world.tools.ran), len(world.models.prompts)
    world.carries = carries

    turn = fork(world, run_id, 3, instructions="Be brief.")
    world.run_dry()

    assert dict(world.tools.ran) == ledger, "no tool has run"
    forked = run_of(world, turn)
    results = [(row["status"], row["content"], row["answered_from"]) for row in calls_of(world, forked.run_id)]
    assert results == [("succeeded", row["content"], row["id"]) for row in calls_of(world, run_id)]
    assert len(world.models.prompts) - asked == ROUNDS - 2 + 1, "the replies of two rounds are repeated"
    assert views.turn(world.store, turn).answer.startswith("Be brief.: [")
    replies = [step for step in forked.steps if isinstance(step, InferenceStep)]
    assert [step.is_repeated for step in replies] == [True, True, False, False, False]
    assert [step.usage.input_tokens for step in replies] == [0, 0, 5, 5, 3]
    assert (forked.fork_of, forked.thread_id.startswith("api:")) == (run_id, True)
    assert world.row("turns", run_id=run_id)["disposition"] == "answered"
    check_all(world.store)


def test_the_model_reads_in_the_fork_what_it_has_read_in_the_source(world: World) -> None:
    world.models.script = rounds_of(1)
    world.submit("before")
    world.run_dry()
    run_id = source(world)
    read = [prompt.said for prompt in world.models.prompts]

    fork(world, run_id, 3)
    world.run_dry()

    assert [prompt.said for prompt in world.models.prompts[len(read) :]] == read[-3:]


def test_edited_arguments_are_not_in_the_record_and_are_not_run(world: World) -> None:
    run_id = source(world)
    ran = world.tools.ran.total()

    turn = fork(world, run_id, 3, arguments={"r1c0": {"n": 99}})
    world.run_dry()

    assert world.tools.ran.total() == ran
    (edited, other) = calls_of(world, run_of(world, turn).run_id)[2:4]
    assert (edited["arguments"], edited["status"], edited["code"]) == ({"n": 99}, "cancelled", NOT_RUN_IN_FORK)
    assert (edited["content"], edited["answered_from"]) == (HELD_BACK, None)
    assert (other["status"], other["content"]) == ("succeeded", "unsafe11")
    said = [said for said in world.models.prompts[-1].said if isinstance(said, ToolSays)]
    assert said[2].content == HELD_BACK
    assert said[2].is_error


@pytest.mark.parametrize("effects", [{"unsafe"}, {ALL}], ids=["by name", "all"])
def test_allowed_tools_run_behind_the_fork_and_what_is_before_it_does_not(world: World, effects: set[str]) -> None:
    run_id = source(world)
    ran = set(world.tools.ran)

    turn = fork(world, run_id, 3, arguments={"r1c0": {"n": 99}}, effects=frozenset(effects))
    world.run_dry()

    orders = [order.arguments["n"] for order in world.tools.orders[len(ran) :]]
    assert orders == [99, 20, 21, 30, 31], "the edited call and the rounds behind it"
    assert {key.partition(":")[0] for key in set(world.tools.ran) - ran} == {run_of(world, turn).run_id}


def test_a_tool_that_is_allowed_allows_no_other(world: World) -> None:
    def both(prompt: Prompt) -> Reply:
        if any(isinstance(said, AssistantSays) for said in prompt.said):
            return spoken("done")
        return asking(("unsafe", {"n": 1}), ("idempotent", {"n": 1}), ids=("a", "b"))

    run_id = source(world, rounds=0)
    world.models.script = both
    turn = fork(world, run_id, 0, effects=frozenset({"idempotent"}))
    world.run_dry()

    assert [order.tool for order in world.tools.orders] == ["idempotent"]
    assert [row["code"] for row in calls_of(world, run_of(world, turn).run_id)] == [NOT_RUN_IN_FORK, None]


def test_a_pure_tool_runs_where_the_record_has_no_such_call(world: World) -> None:
    run_id = source(world, "pure", rounds=2)
    ran = world.tools.ran.total()
    world.models.script = numbered("pure", 2, offset=5)

    turn = fork(world, run_id, 1)
    world.run_dry()

    forked = calls_of(world, run_of(world, turn).run_id)
    assert world.tools.ran.total() == ran + 2
    assert [row["content"] for row in forked] == ["pure0", "pure1", "pure15", "pure16"]
    assert [row["answered_from"] is None for row in forked] == [False, False, True, True]


def test_a_pure_tool_that_is_in_the_record_does_not_run(world: World) -> None:
    run_id = source(world, "pure", rounds=2)
    ran = world.tools.ran.total()

    fork(world, run_id, 0)
    world.run_dry()

    assert world.tools.ran.total() == ran


def test_equal_calls_are_answered_in_the_order_in_which_they_were_made_and_each_once(world: World) -> None:
    """Three of the same in the source, four in the fork."""
    numbers = iter(range(100))
    world.tools.says = lambda _order: f"number {next(numbers)}"

    def same(rounds: int):
        def reply(prompt: Prompt) -> Reply:
            done = sum(isinstance(said, AssistantSays) for said in prompt.said)
            return asking(("unsafe", {"n": 1}), ids=(f"r{done}",)) if done < rounds else spoken("done")

        return reply

    world.models.script = same(3)
    run_id = str(world.row("turns", id=submitted(world))["run_id"])
    world.models.script = same(4)

    turn = fork(world, run_id, 1)
    world.run_dry()

    contents = [row["content"] for row in calls_of(world, run_of(world, turn).run_id)]
    assert contents == ["number 0", "number 1", "number 2", HELD_BACK]


def submitted(world: World, text: str = "hello") -> str:
    turn = world.submit(text)
    world.run_dry()
    return turn


def test_keys_in_another_order_are_the_same_arguments(world: World) -> None:
    world.models.script = lambda prompt: (
        spoken("done") if len(prompt.said) > 1 else asking(("unsafe", {"a": 1, "n": 2}), ids=("x",))
    )
    run_id = str(world.row("turns", id=submitted(world))["run_id"])
    world.models.script = lambda prompt: (
        spoken("done") if len(prompt.said) > 1 else asking(("unsafe", {"n": 2, "a": 1}), ids=("y",))
    )

    turn = fork(world, run_id, 0)
    world.run_dry()

    (call,) = calls_of(world, run_of(world, turn).run_id)
    assert (call["status"], call["content"]) == ("succeeded", "unsafe2")
    assert world.tools.ran.total() == 1


def test_an_edited_message_is_asked_anew_from_the_beginning(world: World) -> None:
    run_id = source(world)

    turn = fork(world, run_id, 0, text="goodbye")
    world.run_dry()

    assert world.models.prompts[-ROUNDS - 1].said[-1].text == "goodbye"
    assert world.row("turns", id=turn)["text"] == "goodbye"
    assert world.tools.ran.total() == 2 * ROUNDS


def test_an_edited_model_is_asked_behind_the_fork(world: World) -> None:
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", selectable_models=("other",))
    models = []
    plain = world.models.complete
    world.models.complete = lambda agent, prompt, **more: models.append(agent.model) or plain(agent, prompt, **more)
    run_id = source(world)
    models.clear()

    fork(world, run_id, 3, model="other")
    world.run_dry()

    assert models == ["other"] * 3


def test_a_failed_call_of_the_source_has_failed_in_the_fork_too(world: World) -> None:
    world.models.script = lambda prompt: (
        spoken("done") if len(prompt.said) > 1 else asking(("pure", {"n": "bad"}), ("nothing", {}), ids=("a", "b"))
    )
    run_id = str(world.row("turns", id=submitted(world))["run_id"])

    turn = fork(world, run_id, 1)
    world.run_dry()

    outcomes = [(row["status"], row["code"]) for row in calls_of(world, run_of(world, turn).run_id)]
    assert outcomes == [("failed", "invalid_arguments"), ("failed", "unknown_tool")]


def test_a_call_that_a_person_approved_with_other_arguments_is_answered_as_it_was(world: World) -> None:
    """And nobody is asked again."""
    world.tools.asks = asks_once(0)
    world.models.script = numbered("unsafe", 1, width=1)
    turn = submitted(world)
    (question,) = world.inbox()
    approve(world, question, edited_args={"n": 7})
    run_id = str(world.row("turns", id=turn)["run_id"])
    ran = world.tools.ran.total()

    forked = fork(world, run_id, 1)
    world.run_dry()

    assert world.inbox() == []
    assert world.tools.ran.total() == ran
    (call,) = calls_of(world, run_of(world, forked).run_id)
    assert (call["status"], call["content"]) == ("succeeded", "unsafe7")


def test_a_call_that_still_waits_in_the_source_is_not_carried_out_in_the_fork(world: World) -> None:
    world.tools.asks = asks_of(0)
    world.models.script = numbered("unsafe", 1, width=1)
    run_id = str(world.row("turns", id=submitted(world))["run_id"])
    ran = world.tools.ran.total()

    forked = fork(world, run_id, 1)
    world.run_dry()

    (call,) = calls_of(world, run_of(world, forked).run_id)
    assert (call["code"], world.tools.ran.total()) == (NOT_RUN_IN_FORK, ran)
    assert [row["run_id"] for row in world.inbox()] == [run_id]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_sub_agent_is_asked_only_where_it_is_allowed(world: World, allowed: bool) -> None:
    """What it does is not in the record: it may do anything."""
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", agents=(SubAgent(agent="bob"),))
    world.agents.agents["bob"] = AgentSpec(name="bob", model="fake")
    run_id = source(world, rounds=0)
    world.models.script = lambda prompt: (
        asking(("ask_bob", {"message": "hi"}), ids=("a",))
        if prompt.said == (UserSays(text="hello"),)
        else spoken("done")
    )

    turn = fork(world, run_id, 0, effects=frozenset({"ask_bob"} if allowed else ()))
    world.run_dry()

    (call,) = calls_of(world, run_of(world, turn).run_id)
    assert call["code"] == (None if allowed else NOT_RUN_IN_FORK)
    assert len(world.rows("turns", agent="bob")) == int(allowed)


def test_a_sequential_agent_forks_too(world: World) -> None:
    world.agents.agents["ada"] = AgentSpec(name="ada", model="fake", tool_mode=ToolMode.SEQUENTIAL)
    run_id = source(world)
    ran = world.tools.ran.total()

    turn = fork(world, run_id, 3)
    world.run_dry()

    assert world.tools.ran.total() == ran
    assert views.turn(world.store, turn).disposition == "answered"


def test_a_fork_of_a_fork_is_answered_from_the_same_results(world: World) -> None:
    run_id = source(world)
    first = run_of(world, fork_and_finish(world, run_id, 3)).run_id
    second = run_of(world, fork_and_finish(world, first, 5)).run_id

    contents = [row["content"] for row in calls_of(world, run_id)]
    assert [row["content"] for row in calls_of(world, second)] == contents
    assert world.tools.ran.total() == 2 * ROUNDS
    assert [row["answered_from"] for row in calls_of(world, second)] == [row["id"] for row in calls_of(world, first)]


def fork_and_finish(world: World, run_id: str, step: int, **edits: object) -> str:
    turn = fork(world, run_id, step, **edits)
    world.run_dry()
    return turn


def test_a_cut_result_is_read_by_the_call_of_the_fork(world: World) -> None:
    world.tools.says = lambda order: f"cut; call {order.call_id} has the rest"
    run_id = source(world, rounds=1)

    turn = fork_and_finish(world, run_id, 1)

    for call in calls_of(world, run_of(world, turn).run_id):
        assert call["content"] == f"cut; call {call['id']} has the rest"


def test_a_later_message_on_the_thread_of_a_fork_is_a_plain_turn(world: World) -> None:
    run_id = source(world)
    turn = fork_and_finish(world, run_id, 3)
    thread = world.row("turns", id=turn)["thread_id"]
    ran = world.tools.ran.total()
    world.models.script = rounds_of(1, tool="unsafe")

    world.submit("and now really", thread=thread)
    world.run_dry()

    assert world.tools.ran.total() == ran + 1


# the process dies

FORKED_COMMITS = 1 + 1 + ROUNDS + 1  # the fork, its start, a reply with the answers of each round, the last reply


@pytest.mark.usefixtures("calls_anywhere")
@pytest.mark.parametrize("carries", [False, True], ids=["sent", "carried"])
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(1, FORKED_COMMITS + 1))
def test_a_fork_survives_death_at_any_commit(world: World, at: int, before: bool, carries: bool) -> None:
    run_id = source(world)
    ledger, asked = dict(world.tools.ran), len(world.models.prompts)
    world.carries = carries
    world.die_at, world.die_before = world.commits + at, before

    with contextlib.suppress(Died):
        fork(world, run_id, 3, name="forked", instructions="Be brief.")
        world.run_dry()
    died = world.dead
    world.pending.clear()
    world.forget_the_dead()
    world.die_at = None
    if not world.rows("threads", id="api:forked"):
        assert (at, before) == (1, True), "the fork is one commit"
        fork(world, run_id, 3, name="forked", instructions="Be brief.")
    world.recover()

    assert died
    assert dict(world.tools.ran) == ledger, "no tool has run"
    (turn,) = world.rows("turns", fork_of=run_id)
    assert turn["disposition"] == "answered"
    forked = calls_of(world, turn["run_id"])
    assert [row["answered_from"] for row in forked] == [row["id"] for row in calls_of(world, run_id)]
    assert len(world.models.prompts) - asked <= ROUNDS - 1 + 1, "at most the reply that was cut is asked for again"
    check_all(world.store)


def test_a_fork_has_as_many_commits_as_are_tried(world: World) -> None:
    run_id = source(world)
    before = world.commits

    fork_and_finish(world, run_id, 3)

    assert world.commits - before == FORKED_COMMITS


def test_two_workers_at_the_same_reply_of_a_fork_write_it_once(world: World) -> None:
    run_id = source(world)
    turn = fork(world, run_id, 3)
    while world.pending:
        intent = world.pending.pop(0)
        world.deliver(intent)
        world.locks.wipe()
        world.deliver(intent, doubt=True)

    assert views.turn(world.store, turn).disposition == "answered"
    assert len(calls_of(world, run_of(world, turn).run_id)) == 2 * ROUNDS
    assert world.tools.ran.total() == 2 * ROUNDS
    check_all(world.store)


def test_a_recorded_result_cannot_answer_two_calls_of_one_run(world: World) -> None:
    run_id = source(world)
    turn = fork_and_finish(world, run_id, 3)
    row = calls_of(world, run_of(world, turn).run_id)[0]
    copy = {**row, "id": "second", "ask_id": "second", "place": 99}

    with pytest.raises(IntegrityError), world.store.write() as tx:
        tx.execute(insert(schema.calls).values(copy))


# refusals


@pytest.mark.parametrize(
    ("step", "edits", "error", "words"),
    [
        (3, {"model": "other"}, InvalidMessage, "names no model 'other'; choose from fake"),
        (3, {"arguments": {"r0c0": {}}}, InvalidMessage, "asked for no call 'r0c0'; its calls: r1c0, r1c1"),
        (0, {"arguments": {"r0c0": {}}}, InvalidMessage, "asked for no call 'r0c0'; its calls: none"),
        (0, {"text": " "}, InvalidMessage, "text is blank"),
        (99, {}, NotFound, "has no step 99"),
        (9, {}, Conflict, "is its last reply, nothing comes behind it: fork at an earlier step"),
    ],
)
def test_what_cannot_be_forked_is_refused_and_nothing_is_made(world: World, step, edits, error, words) -> None:
    run_id = source(world)
    before = (world.rows("threads"), world.rows("turns"), world.rows("runs"), world.rows("forks"))

    with pytest.raises(error, match=words):
        fork(world, run_id, step, **edits)

    assert (world.rows("threads"), world.rows("turns"), world.rows("runs"), world.rows("forks")) == before


def test_a_run_that_is_not_there_cannot_be_forked(world: World) -> None:
    with pytest.raises(NotFound, match="there is no run 'nothing'"):
        fork(world, "nothing", 0)


def test_a_run_that_took_a_message_in_is_forked_before_it(world: World) -> None:
    world.models.script = numbered("unsafe", 2)
    turn = world.submit("hello")
    while not world.rows("calls", step=2):
        world.deliver(world.pending.pop(0))
    world.submit("and this", when_busy=WhenBusy.STEER)
    world.run_dry()
    run_id = str(world.row("turns", id=turn)["run_id"])

    with pytest.raises(Conflict, match="took a message in at step 3.*fork at step 2 or before"):
        fork(world, run_id, 5)

    fork(world, run_id, 2)
    world.run_dry()
    assert world.unfinished() == []


def test_a_run_that_plans_is_not_repeated(world: World) -> None:
    run_id = source(world, rounds=0)
    with world.store.write() as tx:
        tx.execute(schema.runs.update().values(strategy="plan_execute").where(schema.runs.c.id == run_id))

    with pytest.raises(Conflict, match="can repeat no plan. Instead, fork its thread without a run"):
        fork(world, run_id, 0)


def test_a_run_that_was_held_for_its_consumer_is_forked_from_its_message(world: World) -> None:
    world.models.script = numbered("unsafe", 1)
    turn = world.submit("hello", control=Control.STEP)
    world.run_dry()
    world.step(turn, "run")
    world.run_dry()
    run_id = str(world.row("turns", id=turn)["run_id"])

    with pytest.raises(Conflict, match="held its reply for its consumer.* at step 1, .*fork at step 0 or before"):
        fork(world, run_id, 1)

    fork(world, run_id, 0)
    world.run_dry()
    assert world.unfinished() == []


def test_a_name_that_is_taken_is_refused(world: World) -> None:
    run_id = source(world)
    fork(world, run_id, 1, name="mine")

    with pytest.raises(Conflict, match="there is a thread 'api:mine' already"):
        fork(world, run_id, 1, name="mine")


def test_a_full_queue_refuses_a_fork_with_its_thread(world: World) -> None:
    run_id = source(world)
    bound = QueueBound(max_queued=0, overflow=Overflow.REJECT)
    world.runtime = replace(world.runtime, queue_bounds={Group.CHAT: bound})

    with pytest.raises(QueueFull):
        fork(world, run_id, 1, name="mine")

    assert world.rows("threads", id="api:mine") == []


def test_a_fork_that_failed_is_not_retried_as_a_plain_turn(world: World) -> None:
    run_id = source(world)
    turn = fork(world, run_id, 1)
    stages.cancel_turn(world.runtime, turn, None, space=None)

    with pytest.raises(Conflict, match=f"is a fork: fork run {run_id} once more"):
        views.retry_of(world.store, turn)


@pytest.mark.parametrize("tool", EFFECTFUL)
def test_a_plain_turn_asks_no_statement_more(world: World, tool: str) -> None:
    """And has no terms."""
    source(world, tool)

    assert world.rows("forks") == []
    assert {row["answered_from"] for row in world.rows("calls")} == {None}
    assert {row["fork_of"] for row in world.rows("runs")} == {None}


@pytest.mark.parametrize("placement", ["here", "together", "spread"])
def test_calls_that_run_in_a_fork_run_where_they_are_placed(world: World, placement: str) -> None:
    place_calls(world, Placement(placement))
    run_id = source(world, "pure", rounds=2)
    world.models.script = numbered("pure", 2, offset=5)

    turn = fork_and_finish(world, run_id, 1)

    rows = calls_of(world, run_of(world, turn).run_id)
    assert [row["placed"] and row["placed"].partition(":")[0] for row in rows][:2] == [None, None]
    assert all(str(row["placed"]).startswith(placement) for row in rows[2:])
