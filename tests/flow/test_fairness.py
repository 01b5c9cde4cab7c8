"""Tenants of a group take turns: a backlog of one delays another by one round, however wake-ups come."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from chordage.orchestrator import stages
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Dispatch, Hint
from chordage.orchestrator.store import fairness, groups, schema
from support.backlog import crowd
from support.draws import examples
from support.fakes import spoken
from support.rows import start as start_row
from support.schedules import LONG, fresh_world
from support.world import World


def queue(world: World, *tenants: str, wake: bool = False, **more: object) -> list[str]:
    """A turn for each, on a thread of its own; no wake-up is sent unless `wake`."""
    made = []
    for tenant in tenants:
        world.clock.pass_by(0.001)
        made.append(world.submit(thread=None, tenant=tenant, **more))
    if not wake:
        world.pending.clear()
    return made


def started(world: World) -> list[str]:
    """Whose turns have started, in the order in which they did."""
    turns = {row["id"]: row["tenant"] for row in world.rows("turns")}
    begun = world.rows("journal", kind="UserMessage")
    of_run = {row["id"]: row["turn_id"] for row in world.rows("runs")}
    return [turns[of_run[row["run_id"]]] for row in sorted(begun, key=lambda row: row["id"])]


def serve(world: World, *, budget: int) -> list[str]:
    """Budget that becomes free wakes a dispatcher, again and again, until no turn waits."""
    world.budgets[Group.CHAT] = budget
    world.models.script = lambda prompt: spoken("ok")
    groups.await_place(world.store, Group.CHAT)  # their own wake-ups have come, and found no place
    world.pending.append(Dispatch(group=Group.CHAT))
    world.run_dry()
    assert world.unfinished() == []
    return started(world)


def test_a_backlog_of_one_tenant_delays_a_single_turn_of_another_by_one_round(world: World) -> None:
    queue(world, *["hog"] * 30, "guest")

    assert serve(world, budget=1).index("guest") <= 1


def test_two_tenants_take_turns_until_one_has_no_more(world: World) -> None:
    queue(world, *"aaaabb")

    assert serve(world, budget=1) == list("ababaa")


def test_three_tenants_take_turns_and_of_one_the_longest_due_is_first(world: World) -> None:
    ids = queue(world, *"cccbbaaa")

    assert serve(world, budget=1) == list("abcabcac")
    begun = sorted(world.rows("turns"), key=lambda row: ids.index(row["id"]))
    for tenant in "abc":
        of_it = [row["run_id"] for row in begun if row["tenant"] == tenant]
        order = [row["run_id"] for row in world.rows("journal", kind="UserMessage") if row["run_id"] in of_it]
        assert order == of_it


@pytest.mark.parametrize("budget", [2, 3, 5])
def test_with_more_budget_each_round_still_serves_everybody(world: World, budget: int) -> None:
    queue(world, *["hog"] * 12, *["a"] * 3, *["b"] * 3)

    order = serve(world, budget=budget)

    assert sorted(order[: 3 * budget]).count("hog") <= len(order[: 3 * budget]) // 3 + budget
    assert max(i for i, tenant in enumerate(order) if tenant in "ab") < 9 + 2 * budget


def test_one_tenant_alone_uses_all_of_the_budget(world: World) -> None:
    world.budgets[Group.CHAT] = 4
    queue(world, *["alone"] * 9)

    for _ in range(6):
        stages.dispatch(world.runtime, Group.CHAT)

    assert len(world.rows("runs")) == 4


def test_a_tenant_whose_turns_may_not_start_is_passed_over(world: World) -> None:
    world.models.script = lambda prompt: spoken("ok")
    world.submit(thread="busy", tenant="b")
    stages.dispatch(world.runtime, Group.CHAT)
    world.pending.clear()
    later = world.clock() + timedelta(hours=1)
    queue(world, "a", not_before=later)
    world.submit(thread="busy", tenant="b")
    world.pending.clear()
    queue(world, "d", "c", "d")

    for _ in range(3):
        world.budgets[Group.CHAT] += 1
        world.budgets[Group.CHAT] = min(world.budgets[Group.CHAT], len(world.rows("runs")) + 1)
        stages.dispatch(world.runtime, Group.CHAT)

    assert started(world) == ["b", "c", "d", "d"]


def test_turn_that_slept_takes_its_place_in_the_rotation_when_it_is_due(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    (sleeper,) = queue(world, "b", not_before=world.clock() + timedelta(hours=1))
    assert world.row("turns", id=sleeper)["ready"] == 2
    queue(world, *"aaa")
    assert stages.dispatch(world.runtime, Group.CHAT)

    world.sweep(3601)

    assert world.row("turns", id=sleeper)["ready"] == 1
    with world.store.read() as tx:
        assert sleeper in [found for found, _ in fairness.next_turns(tx, Group.CHAT, world.clock(), 2)]


def test_a_wake_up_that_names_a_turn_out_of_turn_starts_the_one_whose_turn_it_is(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    hogs = queue(world, *["hog"] * 5)
    (guest,) = queue(world, "guest")
    thread = world.row("turns", id=hogs[0])["thread_id"]

    assert stages.dispatch(world.runtime, Group.CHAT, Hint(hogs[0], str(thread)))

    assert world.row("turns", id=guest)["status"] == "active"


def test_rescue_obeys_the_rotation(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    queue(world, *["hog"] * 5, "guest", "other")

    for _ in range(7):
        world.sweep(61)
        world.run_dry()

    assert started(world)[:3] == ["guest", "hog", "other"]
    assert Counter(started(world)) == {"hog": 5, "guest": 1, "other": 1}


def test_tenant_served_last_is_served_after_the_others(world: World) -> None:
    """One turn at a time, each asked for when the last is answered: that is no way to the front."""
    world.models.script = lambda prompt: spoken("ok")
    world.budgets[Group.CHAT] = 1
    queue(world, *["b"] * 4, *["c"] * 4)
    for _ in range(4):
        queue(world, "a")
        for _ in range(2):
            world.pending += stages.dispatch(world.runtime, Group.CHAT)
            world.pending = [intent for intent in world.pending if not isinstance(intent, Dispatch)]
            finish(world)

    assert started(world)[:6] == ["a", "b", "c", "a", "b", "c"]


def finish(world: World) -> None:
    """What runs ends; no other turn starts."""
    while world.pending:
        world.deliver(world.pending.pop(0))
        world.pending = [intent for intent in world.pending if not isinstance(intent, Dispatch)]


def test_a_start_that_is_refused_moves_no_mark(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    queue(world, "a", "b")
    stages.dispatch(world.runtime, Group.CHAT)
    assert world.row("groups", name="chat")["served"] == "a"

    assert stages.dispatch(world.runtime, Group.CHAT) == []

    assert world.row("groups", name="chat")["served"] == "a"


def test_a_single_tenant_moves_no_mark(world: World) -> None:
    world.budgets[Group.CHAT] = 1
    queue(world, *["a"] * 3)
    before = world.statements

    assert stages.dispatch(world.runtime, Group.CHAT)

    assert world.statements - before == 9  # budget, who is next, the turn; lock, start, mark, run, journal; history
    assert world.row("groups", name="chat")["served"] is None


def test_tenant_with_a_started_turn_does_not_displace_the_first(world: World) -> None:
    """Two places, three tenants: the second may start first, the third may not before the first has."""
    queue(world, *"aabbcc")
    with world.store.write() as tx:
        heads = [found for found, _ in fairness.next_turns(tx, Group.CHAT, world.clock(), 6)]
    by_tenant = {world.row("turns", id=one)["tenant"]: one for one in reversed(heads)}
    tried = {}
    for tenant in "cbbca":
        tried.setdefault(tenant, []).append(start(world, by_tenant[tenant], budget=2))

    assert tried == {"c": [False, False], "b": [True, False], "a": [True]}
    assert world.row("groups", name="chat")["served"] == "a"


def start(world: World, turn_id: str, *, budget: int, place: fairness.StartRule = fairness.StartRule.HAS_SLOT) -> bool:
    run_id = world.runtime.new_id()
    with world.store.write() as tx:
        return start_row(tx, turn_id, run_id, budget, rules=[place], now=world.clock())


def test_ten_thousand_turns_of_one_tenant_are_one_step_of_the_rotation(world: World) -> None:
    crowd(world.store, 2_000, threads=2_000, tenants=1, prefix="hog")
    (guest,) = queue(world, "guest")
    world.budgets[Group.CHAT] = 1

    stages.dispatch(world.runtime, Group.CHAT)

    assert world.row("turns", id=guest)["status"] == "active"


moves = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from("abcd")),
        st.tuples(st.just("submit"), st.sampled_from("aaab")),
        st.tuples(st.just("deliver"), st.integers(0, 1_000)),
        st.tuples(st.just("deliver"), st.integers(0, 1_000)),
        st.tuples(st.just("double"), st.integers(0, 1_000)),
        st.tuples(st.just("drop"), st.integers(0, 1_000)),
        st.tuples(st.just("sweep"), st.just(61)),
    ),
    min_size=10,
    max_size=60,
)


class Watch:
    """For each turn that waits, who has been served since it came while there was no budget for all."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[str] = set()

    def look(self) -> None:
        """The next to start is the first in the rotation: with budget for one, no tenant is served twice while another
        waits who was there before."""
        rows = {row["id"]: row for row in self.world.rows("turns")}
        runs = {row["id"]: row["turn_id"] for row in self.world.rows("runs")}
        begun = [runs[row["run_id"]] for row in self.world.rows("journal", kind="UserMessage")]
        waiting = [row for row in rows.values() if row["status"] == "queued" and row["ready"] == 1]
        for one in waiting:
            since = [rows[turn]["tenant"] for turn in begun if rows[turn]["started_at"] > one["queued_at"]]
            others = Counter(tenant for tenant in since if tenant != one["tenant"])
            if one["tenant"] not in since:
                assert max(others.values(), default=0) <= 1, f"{others} while {one['tenant']} waits"


def play(world: World, schedule: list[tuple[object, ...]]) -> None:
    world.budgets[Group.CHAT] = 1
    world.models.script = lambda prompt: spoken("ok")
    watch = Watch(world)
    for name, what in schedule:
        world.clock.pass_by(1)
        pending = world.pending
        if name == "submit":
            world.submit(thread=None, tenant=str(what))
        elif name == "sweep":
            world.sweep(float(str(what)))
        elif pending:
            at = int(str(what)) % len(pending)
            intent = pending[at] if name == "double" else pending.pop(at)
            if name != "drop":
                world.deliver(intent)
        watch.look()
    for _ in range(300):
        if not world.unfinished():
            break
        world.sweep(61)
        while world.pending:
            world.clock.pass_by(1)
            world.deliver(world.pending.pop(0))
            watch.look()
    assert world.unfinished() == []


@settings(LONG, max_examples=examples(40))
@given(schedule=moves)
def test_no_tenant_is_served_twice_while_another_waits_in_any_schedule(migrated_database_url, schedule) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        play(world, schedule)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(6))
@given(schedule=moves)
def test_no_tenant_is_served_twice_on_postgres_in_any_schedule(migrated_database_url, schedule) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        play(world, schedule)


def test_budget_lowered_below_what_runs_starts_no_turn(world: World) -> None:
    queue(world, *"aab")
    world.budgets[Group.CHAT] = 2
    for _ in range(2):
        stages.dispatch(world.runtime, Group.CHAT)
    with world.store.write() as tx:
        tx.execute(update(schema.groups).where(schema.groups.c.name == "chat").values(budget=1))

    assert stages.dispatch(world.runtime, Group.CHAT) == []
    assert len(world.rows("runs")) == 2


@pytest.mark.parametrize(
    ("place", "started"), [(one, one is fairness.StartRule.HAS_ROOM) for one in fairness.StartRule]
)
def test_next_turn_is_chosen_again_under_the_lock(world: World, place: fairness.StartRule, started: bool) -> None:
    """Another turn may have started in between. Only `invoke`, which waits for one turn, looks at no other."""
    first, second = queue(world, "a", "a")
    (of_other,) = queue(world, "b")

    assert start(world, of_other, budget=1, place=place) is started
    assert start(world, second, budget=1, place=place) is False
    assert start(world, first, budget=2 if started else 1, place=place) is (place is not fairness.StartRule.ALL_FIT)
