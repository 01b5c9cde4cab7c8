"""The counters for monitors equal the rows, whatever is lost, doubled, rebuilt or dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator import stages
from chordage.orchestrator.core import metrics as families
from chordage.orchestrator.core import metrics as rules
from chordage.orchestrator.core.agent import Placement, WhenBusy
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import Attempt, Fault
from chordage.orchestrator.stages import count as count_stage
from chordage.orchestrator.store import projection, schema
from support.bus import settle, with_bus
from support.draws import examples
from support.fakes import rounds_of, spoken
from support.metric_truth import check_counters, count_all, counted
from support.placements import effects, place_calls, placements
from support.play import Play
from support.questions import asks_until_resumed
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.world import Died, World


def with_attempts(script):
    """As a model that fails once and streams its answer."""
    failed = Attempt(model="fake", seconds=0.25, fault=Fault.SERVER)
    answered = Attempt(model="fake", seconds=1.5, first_text=0.5)
    return lambda prompt: replace(script(prompt), attempts=(failed, answered) if len(prompt.said) % 2 else (answered,))


class Counted(Play):
    """A schedule in which the journal is counted at any time, and whoever counts it may die."""

    def __init__(self, world: World, tool: str, placement: Placement) -> None:
        super().__init__(world)
        place_calls(world, placement)
        world.models.script = with_attempts(rounds_of(2, rounds=2, tool=tool))
        world.tools.asks = asks_until_resumed(world, 1)

    def count(self, times: int) -> None:
        self.world.revive()
        for _ in range(times):
            stages.count_journal(self.world.runtime)

    def die_counting(self, commit: int, before: bool) -> None:
        world = self.world
        world.revive()
        world.die_at, world.die_before = world.commits + commit, before
        try:
            stages.count_journal(world.runtime)
        except Died:
            world.revive()
        world.die_at = None

    def count_late(self) -> None:
        """A process that has read its rows, and stops until another has counted them."""
        self.world.revive()
        with pytest.MonkeyPatch.context() as patch:
            overtake(self.world, patch)
            stages.count_journal(self.world.runtime)


def overtake(world: World, patch: pytest.MonkeyPatch) -> None:
    """Between what the next count reads and what it writes, another process counts the same."""
    whole = rules.sums_of

    def overtaken(rows, calls):
        patch.setattr(rules, "sums_of", whole)
        stages.count_journal(world.runtime)
        return whole(rows, calls)

    patch.setattr(rules, "sums_of", overtaken)


schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b"]), st.sampled_from([Group.CHAT, Group.CHORE])),
    st.tuples(st.just("count"), st.integers(1, 3)),
    st.tuples(st.just("die_counting"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("count_late")),
    min_size=8,
)
SETTING = {"tool": effects, "placement": placements, "schedule": schedules}


def play(world: World, tool: str, placement: Placement, schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_stage, "BATCH", 3)
        carry_out(Counted(world, tool, placement), schedule)
        count_all(world)
        check_counters(world)


@settings(LONG, max_examples=examples(40))
@given(**SETTING)
def test_every_counter_equals_the_rows_whatever_the_schedule(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, **chosen)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(8))
@given(**SETTING)
def test_every_counter_equals_the_rows_on_postgres(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("postgresql")) as world:
        play(world, **chosen)


def answer(world: World, count: int = 3) -> None:
    world.models.script = with_attempts(rounds_of(2, rounds=1))
    for n in range(count):
        world.submit(f"hi {n}", thread=f"t{n}")
    world.run_dry()


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_a_process_that_dies_at_any_commit_of_its_count_counts_nothing_twice(world: World, before, monkeypatch) -> None:
    monkeypatch.setattr(count_stage, "BATCH", 4)
    answer(world)
    died = 0
    for at in (1, 1, 2, 1, 3, 1):
        world.die_at, world.die_before = world.commits + at, before
        try:
            count_all(world)
        except Died:
            died += 1
        world.die_at = None
        world.revive()

    count_all(world)

    assert died >= 3
    check_counters(world)
    assert counted(world, families.TURNS_ENDED) == {("chat", "ada", "answered"): 3}


def test_of_two_that_count_the_same_rows_one_stores_nothing(world: World, monkeypatch) -> None:
    answer(world)
    overtake(world, monkeypatch)

    count_all(world)

    check_counters(world)


def test_what_is_counted_once_is_not_looked_at_again(world: World) -> None:
    answer(world)
    count_all(world)
    commits, sent = world.commits, world.statements

    assert stages.count_journal(world.runtime) is False
    assert (world.commits - commits, world.statements - sent) == (0, 1)


def test_a_batch_costs_the_same_statements_however_many_turns_are_in_it(world: World) -> None:
    costs = []
    answer(world, 1)
    count_all(world)  # the first makes the cursor
    for number in (1, 12):
        answer(world, number)
        sent, commits = world.statements, world.commits
        stages.count_journal(world.runtime)
        costs.append((world.statements - sent, world.commits - commits))

    assert costs[0] == costs[1]
    assert costs[0][1] == 1


@pytest.mark.redis
def test_a_bus_that_is_rebuilt_or_emptied_changes_no_counter(world: World, redis_url: str) -> None:
    client, _ = with_bus(world, redis_url, batch=3)
    answer(world)
    settle(world)
    count_all(world)

    stages.rebuild_bus(world.runtime)
    settle(world)
    client.flushdb()
    settle(world)
    count_all(world)

    check_counters(world)
    client.close()


def test_it_counts_without_redis(world: World) -> None:
    assert world.runtime.bus is None
    answer(world)
    count_all(world)

    assert counted(world, families.RUNS_ENDED) == {("chat", "ada", "natural_end", ""): 3}


def test_a_turn_that_ends_in_the_queue_is_counted(world: World) -> None:
    turn = world.submit("hi", thread="t")
    stages.cancel_turn(world.runtime, turn, "not needed")
    count_all(world)

    assert counted(world, families.TURNS_ENDED) == {("chat", "ada", "cancelled"): 1}
    check_counters(world)


def test_what_a_fork_copies_is_counted_once(world: World) -> None:
    answer(world, 1)
    stages.fork_thread(world.runtime, "t0", stages.ForkPoint(), space="api", name="copy")
    count_all(world)

    assert len(world.rows("runs")) == 2
    check_counters(world)
    assert counted(world, families.TURNS_ENDED) == {("chat", "ada", "answered"): 1}


def test_a_message_that_joins_a_run_is_counted_as_steered(world: World) -> None:
    world.models.script = rounds_of(1, rounds=2)
    world.submit("first", thread="t")
    while not world.rows("runs"):
        world.deliver(world.pending.pop(0))
    world.submit("second", thread="t", when_busy=WhenBusy.STEER)
    world.run_dry()
    count_all(world)

    assert counted(world, families.TURNS_ENDED) == {("chat", "ada", "answered"): 1, ("chat", "ada", "steered"): 1}
    check_counters(world)


def test_agents_with_endless_names_become_other(world: World, monkeypatch) -> None:
    monkeypatch.setattr(rules, "MOST_SERIES", 4)
    world.models.script = lambda prompt: spoken("ok")
    turns = [world.submit("hi", thread=f"t{n}") for n in range(7)]
    with world.store.write() as tx:
        for n, turn in enumerate(turns):
            tx.execute(schema.turns.update().where(schema.turns.c.id == turn).values(agent=f"made up {n}"))
    for turn in turns:
        stages.cancel_turn(world.runtime, turn, "no")
        count_all(world)

    found = counted(world, families.TURNS_ENDED)
    assert sum(found.values()) == 7
    assert len(found) == 5
    assert found["chat", "other", "cancelled"] == 3
    with world.store.read() as tx:
        assert projection.load(tx) is None, "the cursor of the bus is another"
