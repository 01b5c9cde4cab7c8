"""Spans of ended runs are sent to a collector: each of them, at least once, and a collector that fails loses none."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from structlog.testing import capture_logs

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import TryLater, Unavailable, Undeliverable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.spans import Span
from chordage.orchestrator.stages import export
from chordage.orchestrator.store import projection
from chordage.orchestrator.store.schema import journal
from support.fakes import rounds_of
from support.family import Lines, ask, settle_in
from support.play import Play
from support.schedules import LONG, carry_out, fresh_world, schedules_of
from support.span_truth import spans_in, trace_of
from support.world import Died, World


class Collector:
    """Keeps what it takes. `refusals`: what it says to the next requests instead."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.refusals: list[Exception] = []

    def send(self, body: bytes) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.bodies.append(body)

    def ids(self) -> Counter[str]:
        return Counter(span["spanId"] for body in self.bodies for span in spans_in(body.decode()))


@pytest.fixture
def collector(world: World) -> Collector:
    return with_collector(world)


def with_collector(world: World) -> Collector:
    made = Collector()
    world.runtime = replace(world.runtime, collector=made)
    stages.export_traces(world.runtime)
    return made


def sent_all(world: World) -> None:
    while stages.export_traces(world.runtime):
        pass


def expected(world: World) -> set[str]:
    roots = [run["id"] for run in world.rows("runs") if run["root_run"] is None]
    return {span["spanId"] for root in roots for span in spans_in(trace_of(world.store, str(root)))}


def cursor(world: World) -> projection.ProjectionState:
    with world.store.read() as tx:
        state = projection.load(tx, projection.TRACES)
    assert state is not None
    return state


def test_nothing_is_read_without_a_collector(world: World) -> None:
    world.submit()
    world.run_dry()
    before = world.statements

    assert not stages.export_traces(world.runtime)
    assert world.statements == before


def test_trees_are_sent_whole_and_once(world: World, collector: Collector) -> None:
    settle_in(world)
    world.models.script = Lines({"ada": [[ask("bob", "who?")]]})
    for _ in range(3):
        world.submit(thread=None)
    world.run_dry()
    sent_all(world)

    assert collector.ids() == Counter(dict.fromkeys(expected(world), 1))
    bodies = len(collector.bodies)
    sent_all(world)
    assert len(collector.bodies) == bodies
    assert not any("contents" in body.decode() or "gen_ai.input" in body.decode() for body in collector.bodies)


def test_run_that_is_open_is_sent_when_it_has_ended(world: World, collector: Collector) -> None:
    world.submit()
    world.deliver(world.pending.pop(0))
    sent_all(world)
    assert not collector.ids()
    world.run_dry()
    sent_all(world)

    assert collector.ids().keys() == expected(world)


def test_first_export_begins_an_hour_ago(world: World) -> None:
    world.submit(thread=None)
    world.run_dry()
    world.clock.pass_by(7200)
    world.submit(thread=None)
    world.run_dry()
    collector = with_collector(world)
    sent_all(world)

    late = [str(run["id"]) for run in world.rows("runs")][-1]
    assert collector.ids().keys() == {span["spanId"] for span in spans_in(trace_of(world.store, late))}


def test_collector_that_is_away_is_tried_again_later_and_loses_nothing(world: World, collector: Collector) -> None:
    world.submit()
    world.run_dry()
    collector.refusals = [TryLater("it is away"), TryLater("busy", 90.0)]
    assert not stages.export_traces(world.runtime)
    state = cursor(world)
    assert (state.failures, state.error, state.claim_token) == (1, "it is away", None)
    assert not stages.export_traces(world.runtime), "too early"
    assert len(collector.refusals) == 1

    world.clock.pass_by(2)
    assert not stages.export_traces(world.runtime)
    world.clock.pass_by(60)
    sent_all(world)
    assert not collector.ids(), "it wanted 90 seconds"
    world.clock.pass_by(31)
    sent_all(world)

    assert collector.ids().keys() == expected(world)
    assert (cursor(world).failures, cursor(world).error) == (0, None)


@pytest.mark.parametrize("wanted", [86_400.0 * 365, 1e300])
def test_collector_does_not_stop_the_export_for_long(world: World, collector: Collector, wanted: float) -> None:
    world.submit()
    world.run_dry()
    collector.refusals = [TryLater("busy", wanted)]
    sent_all(world)
    world.clock.pass_by(export.LONGEST_PAUSE + 1)
    sent_all(world)

    assert collector.ids().keys() == expected(world)


def test_refused_spans_are_left_out_and_the_next_are_sent(
    world: World, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SPANS", 1)
    for _ in range(2):
        world.submit(thread=None)
    world.run_dry()
    collector.refusals = [Undeliverable("400")]
    sent_all(world)

    assert len(collector.ids()) == len(expected(world)) - 1
    assert cursor(world).error is None


def test_run_whose_rows_cannot_be_told_does_not_keep_back_the_next(world: World, collector: Collector) -> None:
    for _ in range(2):
        world.submit(thread=None)
    world.run_dry()
    odd, even = (str(run["id"]) for run in world.rows("runs"))
    told = {span["spanId"] for span in spans_in(trace_of(world.store, even))}
    with world.store.write() as tx:
        of_odd = update(journal).where(journal.c.run_id == odd, journal.c.kind == Checkpoint.ASSISTANT_TURN.value)
        tx.execute(of_odd.values(body={"usage": {"tokens": "many"}, "attempts": [{}]}))
    with capture_logs() as logs:
        sent_all(world)

    assert collector.ids().keys() == told
    assert [(entry["run"], entry["log_level"]) for entry in logs] == [(odd, "error")]
    assert not stages.export_traces(world.runtime), "it is not tried again"


def test_export_waits_for_a_database_that_does_not_answer(
    world: World, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit()
    world.run_dry()

    def unavailable(_store: object, _run: str) -> list[Span]:
        raise Unavailable("away")

    monkeypatch.setattr(export, "run_spans", unavailable)
    with pytest.raises(Unavailable):
        stages.export_traces(world.runtime)
    monkeypatch.undo()
    world.clock.pass_by(export.LEASE + 1)
    sent_all(world)

    assert collector.ids().keys() == expected(world)


def test_another_process_does_not_send_while_one_does(world: World, collector: Collector) -> None:
    world.submit()
    world.run_dry()
    inner: list[bool] = []
    plain = collector.send

    def send(body: bytes) -> None:
        with world.as_another_process():
            inner.append(stages.export_traces(world.runtime))
        plain(body)

    collector.send = send  # type: ignore[method-assign]
    sent_all(world)

    assert inner == [False]
    assert set(collector.ids().values()) == {1}


def test_copies_of_a_fork_are_not_sent(world: World, collector: Collector) -> None:
    turn = world.submit()
    world.run_dry()
    run = world.row("turns", id=turn)["run_id"]
    stages.fork_thread(world.runtime, "t1", stages.ForkPoint(run_id=run, step=3), space="api")
    sent_all(world)

    names = [run["id"] for run in world.rows("runs")]
    sent = {span.of["chordage.run.id"] for body in collector.bodies for span in spans_in(body.decode())}
    assert len(names) == 2
    assert sent == {run}


class Exported(Play):
    """A schedule in which spans are sent at any time, the collector fails, and who sends may die."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.collector = with_collector(world)
        world.models.script = rounds_of(2)

    def export(self, failures: int) -> None:
        self.world.revive()
        self.collector.refusals = [TryLater("away")] * failures
        stages.export_traces(self.world.runtime)
        self.collector.refusals = []

    def die_exporting(self, commit: int, before: bool) -> None:
        world = self.world
        world.revive()
        world.die_at, world.die_before = world.commits + commit, before
        try:
            stages.export_traces(world.runtime)
        except Died:
            world.revive()
        world.die_at = None


schedules = schedules_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b"]), st.sampled_from([Group.CHAT, Group.CHORE])),
    st.tuples(st.just("export"), st.integers(0, 2)),
    st.tuples(st.just("export"), st.just(0)),
    st.tuples(st.just("die_exporting"), st.integers(1, 3), st.booleans()),
    min_size=8,
)


@settings(LONG, max_examples=40)
@given(schedule=schedules, as_many=st.sampled_from([2, 500]))
def test_every_span_is_sent_whatever_the_schedule(migrated_database_url, schedule, as_many) -> None:
    with fresh_world(migrated_database_url("sqlite")) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "ROWS", 5)
        patch.setattr(export, "SPANS", as_many)
        game = Exported(world)
        carry_out(game, schedule)
        for _ in range(3):
            world.revive()
            world.clock.pass_by(120)
            sent_all(world)
        assert game.collector.ids().keys() == expected(world)
        assert all(json.loads(body) for body in game.collector.bodies)
