"""A consumer asks for a summary: made once, before the next request of its run, and nothing of the run is lost."""

from __future__ import annotations

import pytest

from chordage.orchestrator import stages
from chordage.orchestrator.core.phases import Hook
from chordage.orchestrator.core.stepping import Control, Standing
from support import hooks
from support.driving import USER, Consumer, asks, consume, in_short, in_turn, text
from support.invariants import check_all
from support.summing import summaries, summing, talk
from support.world import Died


def with_a_past(world, *replies, **spec) -> Consumer:
    """A stepped turn on a thread on which something was said before."""
    summing(world, in_turn(text("aye")), **spec)
    talk(world, "first")
    summing(world, in_turn(*replies), **spec)
    turn = world.submit("hi", control=Control.STEP)
    world.run_dry()
    return Consumer(world, turn)


def shown(world) -> list[str]:
    """What the model saw last, of each the last line."""
    return [one.rpartition("\n")[2] for one in in_short(world.models.prompts[-1].said)]


def test_the_next_request_is_preceded_by_the_summary_and_only_that(world):
    it = with_a_past(world, asks("a"), text("done"))
    it.do("compact")
    assert (it.look().standing, summaries(world)) == (Standing.READY, [])
    it.next()
    assert shown(world) == ["summary 1", "hi"]
    it.next()

    assert (shown(world), len(summaries(world))) == (["summary 1", "hi", "R(a)", "a=pure0"], 1)
    it.next()
    assert (it.look().answer, it.look().disposition) == ("done", "answered")
    check_all(world.store)


def test_while_a_reply_is_held_it_waits_and_neither_reply_nor_result_nor_steer_is_lost(world):
    it = with_a_past(world, asks("a"), text("done"))
    it.next()
    it.do("steer", text="S")
    it.do("compact")
    assert it.look().reply.asks[0].id == "a"
    it.next()

    assert shown(world) == ["summary 1", "hi", "R(a)", "a=pure0", "S"]
    assert (it.look().standing, it.look().iteration, it.runs) == (Standing.HELD, 2, 1)
    it.next()
    check_all(world.store)


def test_in_a_long_run_its_own_older_part_goes_and_what_the_model_has_not_seen_stays(world):
    it = consume(world)
    summing(world, in_turn(asks("a"), asks("b"), text("done")))
    it.next()
    it.next()
    it.do("compact")
    it.next()

    assert shown(world) == ["summary 1", "hi", "R(b)", "b=pure0"]
    it.next()
    check_all(world.store)


def test_what_the_consumer_pushed_stays_where_it_is(world):
    it = with_a_past(world, text("R"), text("done"))
    it.next()
    it.do("compact")
    it.push(it.link, USER)
    it.next()

    assert shown(world) == ["summary 1", "hi", "R", "U"]


def test_replaced_history_is_not_summarised_in_vain(world):
    it = with_a_past(world, asks("a"), text("R"), text("done"))
    it.next()
    it.do("params", params={}, messages=[USER])
    it.do("compact")
    it.next()

    assert (shown(world), summaries(world)) == (["U"], [])


@pytest.mark.parametrize("threshold", [1, None])
def test_only_the_consumer_decides_what_its_model_sees_not_a_threshold(world, threshold):
    it = with_a_past(world, text("done"), threshold=threshold)
    stages.ask_to_compact(world.runtime, "t1")
    it.next()

    assert (shown(world), summaries(world)) == (["first", "aye", "hi"], [])


def test_two_summary_requests_before_one_model_call_or_with_one_key_make_one_summary(world):
    it = with_a_past(world, asks("a"), text("done"))
    first = world.step(it.turn, "compact", key="k")
    again = world.step(it.turn, "compact", key="k")
    it.do("compact")
    it.do("run")

    assert (again.rev, again.duplicate, len(summaries(world))) == (first.rev, True, 1)
    assert world.row("threads")["compact_asked"] == 2


def test_run_start_hook_runs_once_even_if_a_summary_comes_first(world):
    steps = []
    it = with_a_past(world, text("done"))
    hooks.install(world, hooks.plugin_for(Hook.RUN_START, lambda context: steps.append(context.step) or []))
    it.do("compact")
    it.do("run")

    assert (len(steps), len(summaries(world))) == (1, 1)


@pytest.mark.parametrize("at", range(1, 7))
def test_death_at_any_commit_loses_nothing_and_makes_it_once(world, at):
    it = with_a_past(world, asks("a", tool="idempotent"), text("done"))
    it.next()
    world.die_at = world.commits + at
    for verb in ("compact", "next", "next"):
        for _ in range(10):
            try:
                world.step(it.turn, verb, key=f"{verb}{it.look().iteration}")
                world.run_dry()
            except Died:
                world.pending.clear()
                world.forget_the_dead()
            if it.look().standing in {Standing.HELD, Standing.DONE}:
                break
            world.sweep(seconds=40)

    summary, *others = shown(world)
    assert summary.startswith("summary")
    assert (others, len(summaries(world))) == (["hi", "R(a)", "a=idempotent0"], 1)
    assert it.look().disposition == "answered"
    check_all(world.store)
