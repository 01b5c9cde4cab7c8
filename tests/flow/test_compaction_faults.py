"""When no summary comes of it the history stays whole and the run continues; a death at any commit changes nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import ModelFailed
from chordage.orchestrator.core.model import Attempt, Fault, Reply, StopReason, Usage
from support.fakes import rounds_of, spoken
from support.invariants import check_all
from support.summing import ASKS, FITS, failures, is_for_summary, last_prompt, rounds, summaries, summing, talk
from support.world import Died

pytestmark = pytest.mark.usefixtures("calls_anywhere")


def failing(prompt):
    tried = Attempt(model="x:small", seconds=1.5, fault=Fault.TIMEOUT, usage=Usage(input_tokens=7))
    raise ModelFailed("x:small: timeout\x00", fault=Fault.TIMEOUT, attempts=(tried,))


def stopping(stop: StopReason, text: str = "half a summ"):
    cost = Usage(input_tokens=7)
    return lambda prompt: Reply(text=text, asks=(), stop=stop, model="x:small", usage=cost)


BROKEN = {
    "failed": (failing, "x:small: timeout\ufffd"),
    "cut": (stopping(StopReason.MAX_TOKENS), "the model stopped with max_tokens"),
    "refused": (stopping(StopReason.REFUSAL), "the model stopped with refusal"),
    "uses tools": (stopping(StopReason.TOOL_USE), "the model stopped with tool_use"),
    "blank": (stopping(StopReason.END, " \n"), "the model said nothing"),
}


@pytest.mark.parametrize("writer", BROKEN)
def test_without_a_summary_the_history_stays_whole_and_the_run_continues(world, writer):
    write, why = BROKEN[writer]
    summing(world, lambda prompt: spoken("aye"), writer=write, model="x:small", threshold=FITS)
    talk(world, "first")
    turn = talk(world, "second")

    (failure,) = failures(world)
    run = world.row("runs", id=turn["run_id"])
    assert (turn["disposition"], summaries(world)) == ("answered", [])
    assert last_prompt(world) == ["first", "aye", "second"]
    assert (failure["why"], failure["model"]) == (why, "x:small")
    assert run["input_tokens"] == 7 + 3
    check_all(world.store)


def test_a_run_tries_in_vain_once_and_the_next_one_once_more(world):
    for number, text in enumerate(("first", "second"), start=1):
        summing(world, rounds(1, 1, 1, 1), writer=failing, threshold=ASKS)
        turn = talk(world, text)
        assert turn["disposition"] == "answered"
        assert len(failures(world)) == number
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "third")
    assert len(summaries(world)) == 1


def test_a_request_that_fails_is_not_carried_into_every_step(world):
    summing(world, rounds(1, 1, 1), writer=failing)
    talk(world, "before")
    summing(world, rounds(1, 1, 1), writer=failing)
    stages.ask_to_compact(world.runtime, "t1")
    talk(world, "second")
    assert [body["cause"] for body in failures(world)] == ["request"]


def test_a_run_that_is_cancelled_meanwhile_refuses_the_summary(world):
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "first")
    turn = world.submit("second")
    world.models.before_reply = lambda prompt: stages.cancel_turn(world.runtime, turn)
    world.run_dry()

    assert world.row("turns", id=turn)["disposition"] == "cancelled"
    assert (summaries(world), failures(world)) == ([], [])
    check_all(world.store)


def test_of_two_that_write_it_one_is_recorded(world):
    """The wake-up comes twice, and Redis has lost the note that it is being worked on."""
    summing(world, lambda prompt: spoken("aye"), threshold=FITS)
    talk(world, "first")
    world.submit("second")
    world.deliver(world.pending.pop(0))
    (call,) = world.pending
    twice = iter([True])

    def again(prompt):
        if next(twice, False):
            world.locks.wipe()
            stages.call_model(world.runtime, call.run_id, call.step)

    world.models.before_reply = again
    world.run_dry()
    assert len([prompt for prompt in world.models.prompts if is_for_summary(prompt)]) == 2
    assert len(summaries(world)) == 1
    world.recover()
    check_all(world.store)


COMMITS = 3 + 1 + 2 * (1 + 2) + 1
TALK = ["second", "", "pure0", "pure1", "", "pure0", "pure1"]


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("death", range(1, COMMITS + 1))
def test_a_death_at_any_commit_neither_loses_nor_doubles_a_summary(world, death, before):
    summing(world, lambda prompt: spoken("aye"))
    talk(world, "first")
    summing(world, rounds_of(2, rounds=2))
    stages.ask_to_compact(world.runtime, "t1")
    turn = world.submit("second")
    world.die_at, world.die_before = world.commits + death, before
    with suppress(Died):
        world.run_dry()
    world.die_at = None
    world.revive()
    world.recover()

    assert world.row("turns", id=turn)["disposition"] == "answered"
    assert len(summaries(world)) == 1
    assert len([prompt for prompt in world.models.prompts if is_for_summary(prompt)]) <= 2
    assert [row["step"] for row in world.rows("journal", run_id=world.row("turns", id=turn)["run_id"])] == [
        0, 1, 2, 3, 4, 5, 6, 6
    ]  # fmt: skip
    assert last_prompt(world) == [summaries(world)[0]["summary"], *TALK]
    check_all(world.store)
