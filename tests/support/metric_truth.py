"""What the counters of a database have to be, from its rows alone."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import select

from chordage.orchestrator import stages
from chordage.orchestrator.core import metrics as families
from chordage.orchestrator.core.metrics import TOTAL, MetricFamily, MetricKind
from chordage.orchestrator.store import metrics, schema


def count_all(world) -> None:
    for _ in range(1_000):
        if not stages.count_journal(world.runtime):
            return
    raise AssertionError("the journal is never counted whole")


def counted(world, family: MetricFamily) -> dict[tuple[str, ...], float]:
    """Of a counter its value by labels, of a histogram how many observations it has."""
    found: Counter[tuple[str, ...]] = Counter()
    with world.store.read() as tx:
        for key, number in metrics.load(tx).items():
            if key.name == family.name and (key.bucket == TOTAL) == (family.kind is not MetricKind.HISTOGRAM):
                found[key.labels] += number
    return dict(found)


def seconds(world, family: MetricFamily) -> dict[tuple[str, ...], float]:
    """The sums of a histogram."""
    with world.store.read() as tx:
        sums = metrics.load(tx)
    return {
        key.labels: number / family.scale
        for key, number in sums.items()
        if key.name == family.name and key.bucket == TOTAL
    }


def check_counters(world) -> None:
    """Every counter, and the sums of the histograms whose times are in rows."""
    turns, runs, calls, steps = _own(world)
    of_turn = {turn.id: turn for turn in turns}
    done = [turn for turn in turns if turn.status == "done"]
    over = [run for run in runs if run.status == "done"]
    ended = {run.id for run in over}
    settled = [call for call in calls if call.run_id in ended and call.answered_from is None]
    timed = [call for call in settled if call.started_at and call.ended_at]
    waits = [(run.grp, max(0.0, _seconds(of_turn[run.turn_id].due_at, run.started_at))) for run in runs]
    lasted = [(run.grp, _seconds(of_turn[run.turn_id].started_at, of_turn[run.turn_id].done_at)) for run in over]
    took = [((call.tool, call.status), max(0.0, _seconds(call.started_at, call.ended_at))) for call in timed]
    decided, asked = world.rows("decisions"), {row["id"]: row for row in world.rows("suspensions")}
    waited = [
        (row["action"], _seconds(asked[row["suspension_id"]]["created_at"], row["created_at"])) for row in decided
    ]
    takeovers = world.rows("takeovers")

    _equal(world, families.TURNS_ENDED, ((turn.grp, turn.agent, turn.disposition) for turn in done))
    _equal(world, families.RUNS_ENDED, ((run.grp, run.agent, run.reason, run.code or "") for run in over))
    _equal(world, families.TOOL_CALLS, ((call.tool, call.status) for call in settled))
    _equal(world, families.DECISIONS, ((row["action"],) for row in decided))
    _equal(
        world, families.CLAIMS_EXPIRED, (("tool" if row["call_id"] else "model",) for row in takeovers)
    )  # fmt: skip
    _equal_times(world, families.TURN_WAIT, [((group,), time) for group, time in waits])
    _equal_times(world, families.TURN_DURATION, [((group,), time) for group, time in lasted])
    _equal_times(world, families.TOOL_DURATION, took)
    _equal_times(world, families.DECISION_LATENCY, [((action,), time) for action, time in waited])
    _check_replies(world, runs, steps)


def _check_replies(world, runs, steps) -> None:
    tokens: Counter[tuple[str, str]] = Counter()
    cost: Counter[str] = Counter()
    for run in runs:
        for kind, name in (("input", "input_tokens"), ("output", "output_tokens"), ("cache_read", "cached_tokens")):
            tokens[run.agent, kind] += getattr(run, name) - getattr(run, f"children_{name}")
        cost[run.agent] += run.cost_nanos - run.children_cost_nanos
    found: Counter[tuple[str, str]] = Counter()
    for (agent, _model, kind), number in counted(world, families.MODEL_TOKENS).items():
        found[agent, kind] += number
    assert +found == +tokens
    spent: Counter[str] = Counter()
    for (agent, _model), number in counted(world, families.MODEL_COST).items():
        spent[agent] += number
    assert +spent == +cost
    agents = {run.id: run.agent for run in runs}
    attempts = [(agents[step.run_id], attempt) for step in steps for attempt in step.body.get("attempts") or []]
    _equal(world, families.MODEL_CALLS, ((agent, one["model"], one["fault"] or "ok") for agent, one in attempts))
    _equal_times(world, families.MODEL_DURATION, [((agent, one["model"]), one["seconds"]) for agent, one in attempts])
    first = [((agent, one["model"]), one["first_text"]) for agent, one in attempts if "first_text" in one]
    _equal_times(world, families.FIRST_TEXT, first)


def _own(world):
    """Without what forks have copied; and of each step that was held for a consumer the reply once."""
    with world.store.read() as tx:
        turns = tx.execute(select(schema.turns)).all()
        of_turns = {turn.run_id for turn in turns if turn.disposition != "steered"}
        runs = [run for run in tx.execute(select(schema.runs)).all() if run.id in of_turns]
        calls = tx.execute(select(schema.calls)).all()
        steps = tx.execute(select(schema.journal).order_by(schema.journal.c.id)).all()
    ids = {run.id for run in runs}
    held = {(step.run_id, step.step) for step in steps if step.kind == "ReplyHeld"}
    again = [step for step in steps if step.kind != "ReplyHeld" and (step.run_id, step.step) in held]
    kept = {step.id for step in again if step.kind != "RunFinished"}
    return turns, runs, calls, [step for step in steps if step.run_id in ids and step.id not in kept]


def _equal(world, family, rows) -> None:
    assert counted(world, family) == dict(Counter(rows)), family.name


def _equal_times(world, family, times) -> None:
    _equal(world, family, (labels for labels, _ in times))
    sums: Counter = Counter()
    for labels, time in times:
        sums[labels] += round(time * family.scale)
    assert seconds(world, family) == {labels: number / family.scale for labels, number in sums.items()}, family.name


def _seconds(start, end) -> float:
    return (end - start).total_seconds()
