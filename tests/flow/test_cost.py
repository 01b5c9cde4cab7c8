"""What replies cost: recorded once with their tokens, and every level is the sum of them, whatever the schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator import stages, views
from chordage.orchestrator.core.agent import CompactionSpec, PlanSpec, ToolMode
from chordage.orchestrator.core.errors import InvalidMessage, ModelFailed
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import CancelTurn
from chordage.orchestrator.core.model import COUNTS, Attempt, Fault, Reply, StopReason, Usage, usage_from
from chordage.orchestrator.core.prices import Price, UsageKey, exact
from chordage.orchestrator.gateways.ids import Ids
from chordage.orchestrator.plugins.stops import Stops
from chordage.orchestrator.views import PageQuery
from chordage.workers.cli.show import run_lines
from support.draws import examples
from support.fakes import rounds_of, spoken
from support.family import Lines, ask, by_agent, settle_in
from support.invariants import check_all
from support.one_turn import change_agent, play
from support.placements import effects, place_calls, placements
from support.planning import plan_of, planner
from support.play import Play
from support.questions import asks_until_resumed
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.summing import FITS, summing, talk
from support.world import World

ONE = (Price(input=exact(1), output=exact(10)),)  # a token in: 1000 nano-dollars; out: 10000
SPOKEN = 3 * 1000 + 2 * 10_000  # what `spoken` costs then


def costs(world: World) -> list[tuple[int, int]]:
    return [(run["cost_nanos"], run["unpriced"]) for run in world.rows("runs")]


def recorded(world: World, kind: str = "AssistantTurnCommitted") -> list[tuple[int | None, int]]:
    usages = [row["body"]["usage"] for row in world.rows("journal", kind=kind)]
    return [(usage["cost_nanos"], usage["unpriced"]) for usage in usages]


def lines(world: World, by: UsageKey = UsageKey.AGENT, **more):
    since = more.pop("since", world.clock() - timedelta(days=2))
    return views.usage_report(world.store, by, world.clock() + timedelta(seconds=1), since=since, **more).lines


def test_a_reply_is_recorded_with_its_cost(world):
    world.prices = {"fake": ONE}
    play(world, script=lambda _prompt: spoken("aye"))

    assert recorded(world) == [(SPOKEN, 0)]
    assert costs(world) == [(SPOKEN, 0)]
    check_all(world.store)


def test_a_model_without_a_price_has_an_unknown_cost_and_never_0(world):
    play(world)

    (run,) = views.run_page(world.store, PageQuery(limit=5)).data
    assert recorded(world) == [(None, 1)] * 2
    assert (run.usage.cost_nanos, run.usage.unpriced) == (None, 2)
    assert views.turn(world.store, run.turn_id).usage == run.usage == run.own_usage
    check_all(world.store)


def test_a_model_with_a_price_of_0_costs_nothing(world):
    world.prices = {"fake": (Price(input=exact(0), output=exact(0)),)}
    play(world)

    assert recorded(world) == [(0, 0)] * 2
    assert views.run(world.store, world.row("runs")["id"]).usage.cost_nanos == 0


def test_each_reply_has_the_price_of_the_model_that_made_it(world):
    """A fallback may have another price, or none."""
    world.prices = {"fake": ONE, "other": (Price(input=exact(2), output=exact(20)),)}
    models = iter(["fake", "other", "third"])
    script = rounds_of(1, rounds=2)
    play(world, script=lambda prompt: replace(script(prompt), model=next(models)))

    (first, _), (second, _), third = recorded(world)
    assert second == 2 * first
    assert third == (None, 1)
    assert costs(world) == [(3 * first, 1)]


def test_the_price_of_the_day_counts_and_a_later_one_changes_nothing(world):
    today = world.clock().date()
    dearer = Price(input=exact(2), output=exact(20), since=today + timedelta(days=1))
    world.prices = {"fake": (*ONE, dearer)}
    play(world, script=lambda _prompt: spoken("aye"))
    world.clock.pass_by(86_400)
    play(world, script=lambda _prompt: spoken("aye"))
    world.prices = {}
    play(world, script=lambda _prompt: spoken("aye"))

    assert recorded(world) == [(SPOKEN, 0), (2 * SPOKEN, 0), (None, 1)]
    days = [(line.key, line.usage.cost_nanos, line.usage.unpriced) for line in lines(world, UsageKey.DAY)]
    tomorrow = str(today + timedelta(days=1))
    assert days == [(tomorrow, 2 * SPOKEN, 1), (str(today), SPOKEN, 0)]


def test_a_provider_that_tells_no_tokens_leaves_the_cost_unknown(world):
    world.prices = {"fake": ONE}
    answered = (Attempt(model="fake", seconds=0.1),)
    play(world, script=lambda _prompt: Reply(text="aye", asks=(), stop=StopReason.END, model="fake", attempts=answered))

    assert recorded(world) == [(None, 1)]


def test_attempts_that_fail_count_nothing(world):
    world.prices = {"fake": ONE}

    def fails(_prompt):
        failed = (Attempt(model="fake", seconds=0.1, fault=Fault.SERVER),)
        raise ModelFailed("down", fault=Fault.SERVER, attempts=failed)

    play(world, script=fails)

    assert costs(world) == [(0, 0)]
    check_all(world.store)


def test_replies_of_planners_count(world):
    world.prices = {"fake": ONE}
    change_agent(world, strategy="plan_execute", plan=PlanSpec())
    world.models.script = planner(plan_of("pure", "pure"))
    world.submit("find out", strategy="plan_execute")
    world.run_dry()

    plans = recorded(world, "PlanCommitted")
    assert plans
    assert costs(world) == [(sum(cost or 0 for cost, _ in plans + recorded(world)), 0)]
    check_all(world.store)


def test_summaries_count_by_the_price_of_their_writer(world):
    world.prices = {"fake": ONE, "writer": (Price(input=exact(100), output=exact(0)),)}
    summary = replace(spoken("so"), model="writer")
    summing(world, lambda _prompt: spoken("aye"), threshold=FITS, writer=lambda _prompt: summary)
    talk(world, "first")
    talk(world, "second")

    assert recorded(world, "HistoryCompacted") == [(300_000, 0)]
    assert costs(world) == [(SPOKEN, 0), (SPOKEN + 300_000, 0)]
    check_all(world.store)


def test_a_summary_that_fails_is_paid_all_the_same(world):
    world.prices = {"fake": ONE}
    summing(world, lambda _prompt: spoken("aye"), threshold=FITS, writer=lambda _prompt: spoken(" "))
    talk(world, "first")
    talk(world, "second")

    assert recorded(world, "CompactionFailed") == [(SPOKEN, 0)]
    assert costs(world) == [(SPOKEN, 0), (2 * SPOKEN, 0)]


def test_a_tree_is_its_runs_and_each_agent_is_its_own(world):
    world.prices = {"fake": ONE}
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]]})
    world.submit(thread="t1", tenant="acme")
    world.run_dry()

    runs = {name: views.run(world.store, row["id"]) for name, row in by_agent(world, "runs").items()}
    own = {name: run.own_usage for name, run in runs.items()}
    assert runs["ada"].usage == own["ada"] + own["bob"] + own["cleo"]
    assert runs["ada"].own_usage == sum((step.usage for step in runs["ada"].steps if hasattr(step, "usage")), Usage())
    assert {line.key: line.usage for line in lines(world)} == own
    assert [(line.key, line.usage) for line in lines(world, UsageKey.TENANT)] == [("acme", runs["ada"].usage)]
    assert views.thread_details(world.store, "t1").usage == runs["ada"].usage
    check_all(world.store)


def test_show_says_what_each_reply_cost_and_the_run_with_and_without_its_sub_agents(world):
    world.prices = {"fake": (Price(input=exact(1000), output=exact(0)),)}
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.submit()
    world.run_dry()

    shown = list(run_lines(views.run(world.store, by_agent(world, "runs")["ada"]["id"])))
    assert "11 tokens in, 8 out, $0.011 (without its sub-agents 8 tokens in, 6 out, $0.008)" in shown[1]
    assert any("5 tokens in, 4 out, $0.005," in line for line in shown)


def test_a_child_that_ends_behind_its_parent_counts_in_all_runs_above_it(world):
    """The root is cancelled while its tree works: each run of it ends in a transaction of its own."""
    world.prices = {"fake": ONE}
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]], "bob": [[ask("cleo")]], "cleo": [[("pure", {"n": 0})]]})
    turn = world.submit()
    while not world.tools.orders:
        world.deliver(world.pending.pop(0))
    cancels = list(stages.cancel_turn(world.runtime, turn)[1])
    while cancels:  # each from the top of the tree down, before anything else
        world.deliver(cancels.pop(0))
        cancels += [intent for intent in world.pending if isinstance(intent, CancelTurn)]
        world.pending[:] = [intent for intent in world.pending if not isinstance(intent, CancelTurn)]
    world.run_dry()

    rows = by_agent(world, "runs")
    assert {rows[name]["reason"] for name in ("ada", "bob", "cleo")} == {"cancelled"}
    assert rows["cleo"]["cost_nanos"] > 0
    check_all(world.store)


def test_a_cost_budget_ends_the_run_by_the_prices_of_the_room(world):
    world.prices = {"fake": ONE}
    play(world, Stops(cost_budget=1e-9), script=rounds_of(1, rounds=5))

    run = world.row("runs")
    assert (run["code"], len(recorded(world))) == ("cost_budget", 1)


def test_a_fork_costs_nothing(world):
    world.prices = {"fake": ONE}
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob")]]})
    world.submit(thread="t1")
    world.run_dry()
    before = [line.usage for line in lines(world)]
    stages.fork_thread(world.runtime, "t1", stages.ForkPoint(), space="api", name="copy")

    assert [line.usage for line in lines(world)] == before
    assert views.thread_details(world.store, "api:copy").usage == Usage()


def test_reports_look_only_at_their_span_and_their_space(world):
    world.prices = {"fake": ONE}
    object.__setattr__(world.runtime, "new_id", Ids())
    world.clock.now = world.clock().now(tz=world.clock().tzinfo)
    start = world.clock()
    for thread in ("api:a", "api@acme:b"):
        play_on(world, thread)
    world.clock.pass_by(120)
    middle = world.clock()
    play_on(world, "api:a")

    def runs(**more):
        return sum(line.runs for line in lines(world, since=more.pop("since", start), **more))

    assert [runs(), runs(space="api"), runs(space="api@acme"), runs(since=middle)] == [3, 2, 1, 1]
    assert [runs(until=middle), runs(until=middle, space="api")] == [2, 1]


def play_on(world: World, thread: str) -> None:
    world.models.script = lambda _prompt: spoken("aye")
    world.submit(thread=thread)
    world.run_dry()


def test_more_lines_than_asked_for_are_cut_and_the_dearest_stay(world):
    world.prices = {"fake": ONE}
    settle_in(world)
    world.models.script = Lines({"ada": [[("pure", {"n": 0})], [("pure", {"n": 1}), ask("bob")]]})
    world.submit()
    world.run_dry()

    now = world.clock() + timedelta(seconds=1)
    report = views.usage_report(world.store, UsageKey.AGENT, now, limit=1)
    assert ([line.key for line in report.lines], report.is_cut) == (["ada"], True)


@pytest.mark.parametrize(("since", "until", "told"), [(0, 0, "is not before until"), (100, 1, "give 92 days or fewer")])
def test_a_span_that_is_empty_or_too_long_is_refused(world, since, until, told):
    now = world.clock()
    with pytest.raises(InvalidMessage, match=told):
        views.usage_report(
            world.store, UsageKey.DAY, now, since=now - timedelta(days=since), until=now - timedelta(days=until)
        )


# Whatever the schedule: `check_all`, which every such test calls, compares each run with its replies and sub-agents.

PRICES = st.sampled_from([{}, {"fake": ONE}, {"fake": (replace(ONE[0], since=None), replace(ONE[0], input=exact(7)))}])
MOVES = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b"]), st.sampled_from([Group.CHAT, Group.CHORE])), min_size=6
)
SETTING = {
    "mode": st.sampled_from(list(ToolMode)), "tool": effects, "placement": placements, "prices": PRICES,
    "known": st.sets(st.integers(0, 12)), "schedule": MOVES,
}  # fmt: skip


def carry_out_and_add_up(world: World, mode, tool, placement, prices, known, schedule) -> None:
    """Every reply costs something else, and some are of a model without a price."""
    game = Play(world)
    settle_in(world, tool_mode=mode, compaction=CompactionSpec(threshold=40))
    place_calls(world, placement)
    world.prices = prices
    call = (tool, {"n": 0})
    tree = Lines({"ada": [[ask("bob"), call]], "bob": [[call, ask("cleo")]]})

    def script(prompt):
        size = sum(len(str(one)) for one in prompt.said)
        reply = tree(prompt) if prompt.offers else spoken("short")
        used = Usage(input_tokens=size, cached_tokens=size // 3, output_tokens=size % 7)
        return replace(reply, usage=used, model="unknown" if size % 13 in known else "fake")

    world.models.script = script
    world.tools.asks = asks_until_resumed(world, 1)
    carry_out(game, schedule)
    runs = world.rows("runs")
    own = [usage_from({name: run[name] - run[f"children_{name}"] for name in COUNTS}) for run in runs]
    for by in UsageKey:
        assert sum((line.usage for line in lines(world, by)), Usage()) == sum(own, Usage()), by
    for thread in {run["thread_id"] for run in runs}:
        of_thread = [usage_from(run) for run in runs if run["thread_id"] == thread]
        assert views.thread_details(world.store, thread).usage == sum(of_thread, Usage())


@settings(LONG, max_examples=examples(25))
@given(**SETTING)
def test_every_level_is_the_sum_of_the_rows_whatever_the_schedule(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world:
        carry_out_and_add_up(world, **chosen)


@pytest.mark.postgres
@settings(LONG, max_examples=examples(5))
@given(**SETTING)
def test_every_level_is_the_sum_of_the_rows_on_postgres(migrated_database_url, **chosen) -> None:
    with fresh_world(migrated_database_url("postgres")) as world:
        carry_out_and_add_up(world, **chosen)
