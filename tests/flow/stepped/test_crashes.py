"""The process dies at every commit of a stepped turn; its consumer repeats the verb with the same key and continues."""

from __future__ import annotations

import random

import pytest

from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.intents import CallModel, CallTools, CommitRound, StepOn
from chordage.orchestrator.core.stepping import Control, Standing, StepTerms
from support.driving import Consumer, asks, in_short, text
from support.invariants import check_all
from support.world import Died, World

FINISHED = ["hi", "R(a b)", "a=idempotent0", "b=idempotent1", "S", "R(c)", "c=mine", "U"]
COMMITS = 22


def plan(it: Consumer) -> list[tuple[str, dict]]:
    """What the consumer does, in order; each with a key of its own."""
    return [
        ("next", {}),
        ("tool_response", {}),
        ("steer", {"text": "S"}),
        ("next", {}),
        ("messages", {"messages": "link"}),
        ("next", {}),
        ("next", {}),
    ]


def script(prompt):
    said = in_short(prompt.said)
    if "S" not in said:
        return asks("a", "b", tool="idempotent")
    return text("done") if "U" in said else asks("c", tool="unsafe")


def messages(it: Consumer):
    result = {"role": "tool", "ask_id": "c", "content": "mine"}
    return [it.link, result, {"role": "user", "text": "U"}]


def carry_on(world: World, it: Consumer, number: int, verb: str, args: dict) -> None:
    """One verb, again and again until it is done and the turn waits for its consumer."""
    for _ in range(40):
        try:
            given = {**args, "messages": messages(it)} if args.get("messages") else args
            if verb != "messages" or "mine" not in str(it.look().pending):
                world.step(it.turn, verb, key=f"k{number}", **given)
            world.run_dry()
        except Died:
            world.pending.clear()
            world.forget_the_dead()
            world.sweep(seconds=40)
            continue
        if it.look().standing in {Standing.HELD, Standing.DONE, Standing.READY}:
            return
        world.sweep(seconds=40)
    raise AssertionError(f"{verb} does not come to its end: {it.look().standing}")


def drive(world: World) -> Consumer:
    world.models.script = script
    turn = None
    for _ in range(5):
        try:
            turn = turn or world.submit(control=Control.STEP, step=StepTerms(), dedupe_key="d")
            world.run_dry()
            break
        except Died:
            world.pending.clear()
            world.forget_the_dead()
    turn = turn or str(world.row("turns")["id"])
    it = Consumer(world, turn)
    while it.look().standing is Standing.QUEUED or it.look().standing is Standing.REQUESTING:
        world.sweep(seconds=40)
        world.run_dry()
    for number, (verb, args) in enumerate(plan(it)):
        carry_on(world, it, number, verb, args)
    return it


def check(world: World, it: Consumer) -> None:
    from chordage.orchestrator.core.transcript import build
    from chordage.orchestrator.store import journal

    with world.store.read() as tx:
        past = journal.history(tx, "t1")
    assert in_short(build(past.entries, past.calls)) == [*FINISHED, "done"]
    assert it.look().disposition == "answered"
    assert it.runs <= 3, "more executions than the one that was cut"
    check_all(world.store)


def test_without_a_crash(world):
    it = drive(world)

    check(world, it)
    assert (len(it.asked), it.runs) == (3, 2)
    assert world.commits <= COMMITS


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", range(2, COMMITS + 1))
def test_a_stepped_turn_survives_death_at_any_commit(world, at, before):
    world.die_at, world.die_before = at, before

    it = drive(world)

    check(world, it)
    assert len(it.asked) <= 4, "more model calls than the one that was cut"


@pytest.mark.parametrize("at", range(2, 12))
def test_a_turn_that_runs_to_its_end_survives_death_at_any_commit(world, at):
    world.models.script = lambda prompt: text("done") if len(prompt.said) > 1 else asks("a", "b", tool="idempotent")
    turn = world.submit(control=Control.STEP)
    it = Consumer(world, turn)
    world.step(turn, "run")
    world.die_at = world.commits + at
    for _ in range(20):
        try:
            world.run_dry()
        except Died:
            world.pending.clear()
            world.forget_the_dead()
        if it.look().standing is Standing.DONE:
            break
        world.sweep(seconds=40)

    assert (it.look().answer, len(world.rows("calls"))) == ("done", 2)
    check_all(world.store)


@pytest.mark.parametrize("seed", range(12))
def test_intents_doubled_and_late_change_nothing(world, seed):
    """Every wake-up is delivered twice, the second time whenever it comes; also those of steps long gone."""
    chance = random.Random(seed)
    world.models.script = script
    turn = world.submit(control=Control.STEP)
    it, old = Consumer(world, turn), []

    def run_dry():
        while world.pending:
            intent = world.pending.pop(chance.randrange(len(world.pending)))
            if isinstance(intent, CallModel | CallTools | CommitRound | StepOn):
                old.append(intent)
            world.deliver(intent)
            if old and chance.random() < 0.5:
                world.deliver(chance.choice(old))

    run_dry()
    for number, (verb, args) in enumerate(plan(it)):
        given = {"messages": messages(it)} if args.get("messages") else args
        world.step(turn, verb, key=str(number), **given)
        run_dry()
        for intent in old:
            world.deliver(intent)
        run_dry()

    check(world, it)
    assert (len(it.asked), it.runs) == (3, 2)


@pytest.mark.parametrize("verb", ["next", "tool_response"])
def test_second_consumer_at_the_same_revision_must_read_again(world, verb):
    world.models.script = script
    it = Consumer(world, world.submit(control=Control.STEP))
    world.run_dry()
    it.next()
    rev = it.look().rev
    world.step(it.turn, verb, if_rev=rev, key="one")
    with pytest.raises(StepRefused) as refused:
        world.step(it.turn, "next", if_rev=rev, key="two")
    world.run_dry()

    assert refused.value.code == "stale_rev"
    assert it.runs == 2
