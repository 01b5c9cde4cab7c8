"""Verbs of a stepped turn: revisions and keys, parking and failing, running to the end, the cap, and time."""

from __future__ import annotations

import pytest

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, ModelFailed, NotFound, StepRefused
from chordage.orchestrator.core.intents import StepOn
from chordage.orchestrator.core.message import WhenBusy
from chordage.orchestrator.core.model import Fault
from chordage.orchestrator.core.stepping import CapPolicy, Control, OnHeld, Standing, StepTerms
from support import outputs
from support.driving import USER, asks, consume, text
from support.invariants import check_all
from support.one_turn import change_agent


def refused(it, verb, **args):
    with pytest.raises(StepRefused) as error:
        it.world.step(it.turn, verb, **args)
    return error.value


def test_B71_stepped_turn_calls_no_model_until_its_consumer_sends_next(world):
    it = consume(world, text())

    assert (it.look().standing, it.asked, world.locks.threads) == (Standing.READY, [], {})
    run = world.row("runs")
    assert (run["status"], run["reason"], run["lease_until"], run["claim_token"]) == ("waiting", "held", None, None)
    assert world.sweep(seconds=10_000) == []


def test_B1_B2_B7_the_history_grows_by_reply_then_results_and_ends_with_the_last_reply(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    assert it.look().reply.asks[0].id == "a"
    it.next()
    it.next()

    assert it.asked == [["hi"], ["hi", "R(a)", "a=pure0"]]
    assert (it.look().standing, it.look().answer, it.look().disposition) == (Standing.DONE, "done", "answered")
    check_all(world.store)


def test_next_is_accepted_before_the_turn_has_started(world):
    world.models.script = lambda _: text("R")
    turn = world.submit(control=Control.STEP)
    world.step(turn, "messages", messages=[USER])
    world.step(turn, "next")
    world.run_dry()

    assert [[one.text for one in prompt.said] for prompt in world.models.prompts] == [["hi", "U"]]


def test_next_is_accepted_while_the_turn_starts(world):
    """Its run is open, and not held yet."""
    world.models.script = lambda _: text("R")
    turn = world.submit(control=Control.STEP)
    hold, said = world.store.retry, []

    def once(attempt, **more):
        world.store.retry = hold
        said.append(world.step(turn, "next").standing)
        return hold(attempt, **more)

    world.store.retry = once
    world.run_dry()

    assert said == [Standing.QUEUED]
    assert views.stepped(world.store, turn).standing is Standing.HELD


def test_an_answer_that_is_not_the_output_demanded_is_sent_back_once(world):
    outputs.demand(world)
    it = consume(world, text(outputs.PROSE), text(outputs.GOOD))
    it.next()
    it.next()
    it.next()

    assert (it.look().standing, it.look().answer, len(outputs.refusals(world))) == (Standing.DONE, outputs.GOOD, 1)
    assert views.turn(world.store, it.turn).output == {"n": 7}
    check_all(world.store)


def test_an_output_that_does_not_fit_twice_or_at_the_cap_is_an_error(world):
    outputs.demand(world)
    it = consume(world, text(outputs.PROSE), max_iterations=1)
    it.do("run")
    other = consume(world, text(outputs.PROSE))
    other.do("run")

    assert (it.look().code, len(it.asked)) == ("output_invalid", 3)
    assert other.look().code == "output_invalid"
    check_all(world.store)


def test_a_stale_revision_is_refused_and_the_current_one_named(world):
    it = consume(world, text())
    rev = it.look().rev
    it.do("options", options={"stream": False})

    error = refused(it, "next", if_rev=rev)

    assert (error.code, error.rev) == ("stale_rev", rev + 1)
    assert f"is at rev {rev + 1}, not {rev}" in str(error)
    world.step(it.turn, "next", if_rev=rev + 1)


def test_the_same_key_again_gets_the_same_answer_and_does_nothing(world):
    it = consume(world, asks("a"), text())
    first = world.step(it.turn, "next", key="k")
    world.run_dry()
    again = world.step(it.turn, "next", key="k")

    assert (again.rev, again.standing, again.duplicate) == (first.rev, first.standing, True)
    assert (world.pending, it.look().iteration) == ([], 1)


def test_a_key_with_another_request_is_a_conflict(world):
    it = consume(world, text())
    world.step(it.turn, "steer", key="k", text="one")

    assert refused(it, "steer", key="k", text="two").code == "key_reused"


def test_verb_in_the_wrong_state_is_refused_with_the_current_state(world):
    it = consume(world, text())

    error = refused(it, "tool_response")

    assert (error.code, error.standing) == ("not_allowed", "ready")


def test_missing_and_unstepped_turns_have_different_errors(world):
    other = world.submit(thread="t2")
    with pytest.raises(NotFound, match="no turn and no run 'nobody'"):
        world.step("nobody", "next")
    with pytest.raises(Conflict, match="not driven by a consumer"):
        world.step(other, "next")


@pytest.mark.parametrize(
    ("verb", "args", "field"),
    [
        ("messages", {}, "messages"),
        ("messages", {"messages": "hi"}, "messages"),
        ("next", {"messages": []}, "messages"),
        ("steer", {"text": "  "}, "text"),
        ("steer", {"text": "a\x00b"}, "text"),
        ("options", {"options": {"speed": 1}}, "options.speed"),
        ("options", {"options": {"model_retries": "two"}}, "options.model_retries"),
        ("options", {"options": {"model_retries": -1}}, "options.model_retries"),
        ("options", {"options": {"model_retries": 10**30}}, "options.model_retries"),
        ("options", {"options": {"model_timeout": 0}}, "options.model_timeout"),
        ("options", {"options": {"model_timeout": 1e308}}, "options.model_timeout"),
        ("params", {"params": {"messages": []}}, "params.messages"),
        ("params", {"params": {"tools": "all"}}, "params.tools"),
    ],
)
def test_bad_arguments_are_refused_by_name(world, verb, args, field):
    it = consume(world, text())
    with pytest.raises(InvalidMessage) as error:
        world.step(it.turn, verb, **args)

    assert error.value.field == field


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"params": {"note": "a\x00b"}}, "params"),
        ({"params": {"note": "\ud800"}}, "params"),
        ({"params": {"note": float("nan")}}, "params"),
        ({"params": {"note": "x" * 300_000}}, "params"),
        ({"options": {"model_timeout": float("inf")}}, "options"),
        ({"options": {"model_retries": -1}}, "options.model_retries"),
        ({"max_iterations": 2**31}, "step.max_iterations"),
    ],
)
def test_what_is_laid_down_with_a_turn_is_bounded_as_that_of_verbs(world, terms, field):
    with pytest.raises(InvalidMessage) as error:
        world.submit(control=Control.STEP, step=StepTerms(**terms))

    assert error.value.field == field
    assert world.rows("turns") == []


def test_a_run_can_be_named_instead_of_its_turn(world):
    it = consume(world, text())
    it.turn = it.look().run_id
    it.next()

    assert it.look().standing is Standing.HELD


def test_B64_B65_B66_a_parked_run_is_resumable_and_keeps_its_thread(world):
    it = consume(world, asks("a"), text())
    it.next()
    it.do("park")
    world.submit("another", control=Control.AUTO)
    world.run_dry()
    assert (it.look().standing, it.runs) == (Standing.PARKED, 0)
    assert [row["status"] for row in world.rows("turns")] == ["active", "queued"]

    it.next()
    it.next()

    assert it.look().standing is Standing.DONE
    world.run_dry()
    assert it.runs == 1
    check_all(world.store)


def test_a_thread_with_a_held_run_is_busy(world):
    consume(world, text())
    with pytest.raises(Conflict, match="busy"):
        world.submit(when_busy=WhenBusy.REJECT)


def failing(times):
    left = [times]

    def before(_prompt):
        if left[0]:
            left[0] -= 1
            raise ModelFailed("down", fault=Fault.SERVER, attempts=())

    return before


def test_B62_B67_B68_B72_a_failed_request_is_tried_again_from_an_intact_history(world):
    it = consume(world, asks("a"), text("done"), max_iterations=2)
    it.next()
    world.models.before_reply = failing(1)
    it.next()
    assert (it.look().standing, it.look().error["fault"]) == (Standing.FAILED, "server")

    it.next()

    assert it.asked[1] == it.asked[2] == ["hi", "R(a)", "a=pure0"]
    assert (it.look().iteration, it.look().error, it.runs) == (2, None, 1)
    it.next()
    assert it.look().answer == "done"
    check_all(world.store)


def test_after_a_failure_the_history_may_be_touched(world):
    world.models.before_reply = failing(1)
    it = consume(world, text("done"))
    it.next()
    it.push(USER)
    it.do("steer", text="S")
    it.next()

    assert it.asked == [["hi"], ["hi", "U", "S"]]
    it.next()
    check_all(world.store)


def test_B70_run_continues_to_the_end_by_itself(world):
    it = consume(world, asks("a"), asks("b"), text("done"))
    it.do("run")

    assert (it.look().standing, it.look().answer, it.look().iteration, it.runs) == (Standing.DONE, "done", 3, 2)
    check_all(world.store)


def test_run_that_continues_by_itself_ends_with_a_failure(world):
    it = consume(world, text())
    world.models.before_reply = failing(1)
    it.do("run")

    assert (it.look().standing, it.look().code) == (Standing.DONE, "model_server")
    check_all(world.store)


def test_run_verb_is_accepted_during_the_model_call_and_while_tools_run(world):
    it = consume(world, asks("a"), asks("b"), text("done"))
    world.models.before_reply = lambda _prompt: world.step(it.turn, "run") if not it.look().iteration else None
    it.next()

    assert it.look().answer == "done"
    check_all(world.store)


def test_steer_while_tools_run_comes_after_their_results(world):
    it = consume(world, asks("a"), text("done"))
    it.next()
    world.tools.before = lambda _order: world.step(it.turn, "steer", text="S")
    it.next()

    assert it.asked[1] == ["hi", "R(a)", "a=pure0", "S"]
    it.next()
    check_all(world.store)


def test_B59_B60_at_the_cap_tools_run_or_not_by_policy(world):
    it = consume(world, asks("a"), max_iterations=1, cap_policy=CapPolicy.RUN_TOOLS)
    it.do("run")
    assert (it.runs, len(it.asked), it.look().code) == (1, 1, "max_iterations")

    world.tools.ran.clear()
    world.submit("again", thread="t2")
    world.pending.clear()
    check = [row["status"] for row in world.rows("calls")]
    assert check == ["succeeded"]


def test_B59_by_default_calls_at_the_cap_are_closed(world):
    it = consume(world, asks("a"), max_iterations=1)
    it.do("run")

    assert (it.runs, it.look().code, world.row("calls")["code"]) == (0, "max_iterations", "not_run_cap")
    check_all(world.store)


@pytest.mark.parametrize("wrong", [0, -1])
def test_B61_no_iterations_at_all_are_refused(world, wrong):
    with pytest.raises(InvalidMessage, match="at least 1, or null"):
        world.submit(control=Control.STEP, step=StepTerms(max_iterations=wrong))


def test_terms_without_control_step_are_refused(world):
    with pytest.raises(InvalidMessage, match="give control 'step'"):
        world.submit(step=StepTerms())


def test_the_time_in_which_a_reply_is_held_is_none_in_which_the_run_has_worked(world):
    change_agent(world, limits=Limits(timeout=60))
    it = consume(world, asks("a"), text("done"))
    it.next()
    world.clock.pass_by(1000)
    it.next()
    it.next()

    assert (it.look().answer, it.runs) == ("done", 1)


@pytest.mark.parametrize("when", ["queued", "ready", "held"])
def test_a_stepped_turn_is_cancelled_wherever_it_is(world, when):
    world.models.script = lambda _: asks("a")
    turn = world.submit(control=Control.STEP)
    if when != "queued":
        world.run_dry()
    if when == "held":
        world.step(turn, "next")
        world.run_dry()
    world.step(turn, "cancel", reason="enough")
    world.run_dry()

    assert world.row("turns")["disposition"] == "cancelled"
    assert world.locks.threads == {}
    assert len(world.rows("journal", kind="ReplyHeld")) == (when == "held"), "the reply is kept"


@pytest.mark.parametrize(
    ("policy", "standing"),
    [(OnHeld.PARK, Standing.PARKED), (OnHeld.RESUME, Standing.DONE), (OnHeld.CANCEL, Standing.DONE)],
)
def test_run_held_too_long_follows_its_policy(world, policy, standing):
    it = consume(world, text("R"), hold_seconds=60, on_held=policy)
    it.next()
    assert world.sweep(seconds=59) == []
    world.sweep(seconds=2)
    world.run_dry()

    assert it.look().standing is standing
    assert it.look().disposition == {OnHeld.PARK: None, OnHeld.RESUME: "answered", OnHeld.CANCEL: "cancelled"}[policy]
    assert world.sweep(seconds=100) == []
    assert it.asked == [["hi"]]


def test_a_parked_run_has_all_the_time_in_the_world(world):
    it = consume(world, text(), hold_seconds=60, on_held=OnHeld.CANCEL)
    it.next()
    it.do("park")

    assert world.sweep(seconds=10_000) == []


def test_a_wake_up_that_got_lost_is_sent_again(world):
    it = consume(world, asks("a"), text("done"))
    world.step(it.turn, "run")
    while not any(isinstance(intent, StepOn) for intent in world.pending):
        world.deliver(world.pending.pop(0))
    world.pending.clear()
    world.sweep(seconds=40)
    world.run_dry()

    assert it.look().answer == "done"
    check_all(world.store)


def test_history_that_cannot_be_sent_stops_an_automatic_run(world):
    it = consume(world, asks("a", "b"), text("done"))
    it.next()
    it.push(it.link, {"role": "tool", "ask_id": "a", "content": "A"}, USER)

    assert refused(it, "run").code == "open_calls"
    assert it.look().standing is Standing.HELD


def test_a_held_run_waits_in_no_budget(world):
    world.budgets.update(dict.fromkeys(world.budgets, 1))
    it = consume(world, text())
    other = world.submit("other", thread="t2", control=Control.AUTO)
    world.run_dry()

    assert world.row("turns", id=other)["status"] == "done"
    assert it.look().standing is Standing.READY


def test_a_run_of_the_engine_reads_nothing_of_stepping(world):
    statements = []
    from chordage.orchestrator.store import statements as sql

    sql.observers.append(lambda _tx, sql: statements.append(sql))
    world.submit()
    world.run_dry()
    sql.observers.pop()

    assert not [sql for sql in statements if "stepped" in sql or " ops" in sql]
    assert world.rows("stepped") == []
