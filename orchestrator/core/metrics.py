"""What monitors read of a fleet: every metric with its labels, and what each row of the journal adds to the counters.

Counters are sums over rows that never change again, so they equal what the database says, however often a process died
while it counted. Tool calls are counted when their run ends: until then a call may be carried out again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from chordage.orchestrator.core.reasons import Ending, Reason, disposition_of
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import Disposition

TOTAL = -1  # the bucket of a counter, and of the sum of a histogram
UNBOUNDED = 2**62  # the bucket of what is above all bounds
MOST_SERIES = 500  # of one counter, with different labels; the labels that callers and models choose are OTHER beyond
LONGEST_LABEL = 100  # characters
OTHER = "other"

SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
OF_PEOPLE = (1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0, 604800.0)


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricFamily:
    """`scale`: how many of the stored whole numbers are one. `free`: labels whose values this code does not choose."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    scale: int = 1
    free: frozenset[str] = frozenset({"agent", "model", "tool", "code"})


class SumKey(NamedTuple):
    """One stored number. `bucket`: TOTAL, or the upper bound of a bucket of a histogram in milliseconds."""

    name: str
    labels: tuple[str, ...]
    bucket: int = TOTAL


Sums = Counter[SumKey]


def _counter(name: str, text: str, *labels: str, scale: int = 1) -> MetricFamily:
    return MetricFamily(name=name, kind=MetricKind.COUNTER, help=text, labels=labels, scale=scale)


def _gauge(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(name=name, kind=MetricKind.GAUGE, help=text, labels=labels)


def _seconds(name: str, text: str, *labels: str, bounds: tuple[float, ...] = SHORT) -> MetricFamily:
    kind = MetricKind.HISTOGRAM
    return MetricFamily(name=name, kind=kind, help=text, labels=labels, bounds=bounds, scale=1_000_000)


TURNS_ENDED = _counter("chordage_turns_ended_total", "Turns that ended.", "group", "agent", "disposition")
RUNS_ENDED = _counter("chordage_runs_ended_total", "Runs that ended.", "group", "agent", "reason", "code")
TURN_WAIT = _seconds(
    "chordage_turn_wait_seconds", "From the time a turn was due to the start of its run.", "group", bounds=LONG
)
TURN_DURATION = _seconds(
    "chordage_turn_duration_seconds", "From the start of a run to the end of its turn.", "group", bounds=LONG
)
MODEL_CALLS = _counter(
    "chordage_model_calls_total", "Requests to models; the outcome is ok or a fault.", "agent", "model", "outcome"
)
MODEL_TOKENS = _counter(
    "chordage_model_tokens_total",
    "Tokens that models have used; cache_read and cache_write are part of input.",
    "agent", "model", "type",
)  # fmt: skip
MODEL_COST = _counter(
    "chordage_model_cost_usd_total", "What replies have cost, of models with a price.", "agent", "model",
    scale=1_000_000_000,
)  # fmt: skip
MODEL_DURATION = _seconds("chordage_model_duration_seconds", "Of one request to a model.", "agent", "model")
FIRST_TEXT = _seconds(
    "chordage_model_first_token_seconds", "Until the first text of a streamed reply.", "agent", "model"
)
TOOL_CALLS = _counter("chordage_tool_calls_total", "Tool calls of runs that ended.", "tool", "status")
TOOL_DURATION = _seconds("chordage_tool_duration_seconds", "Of the tool calls of runs that ended.", "tool", "status")
DECISIONS = _counter("chordage_decisions_total", "Decisions about suspended calls.", "action")
DECISION_LATENCY = _seconds(
    "chordage_decision_latency_seconds", "From a question to its decision.", "action", bounds=OF_PEOPLE
)
JOIN_DELAY = _seconds(
    "chordage_round_join_delay_seconds", "From the last result of a round to the next request to the model."
)
RESCUES = _counter("chordage_rescues_total", "Wake-ups that rescue has sent again.", "kind")
CLAIMS_EXPIRED = _counter(
    "chordage_claims_expired_total", "Model and tool calls that were sent again because their worker was lost.", "kind"
)
# From the rows, while a monitor reads them.
TURNS_QUEUED = _gauge("chordage_turns_queued", "Turns in the queue; counting stops at 10,000.", "group")
OLDEST_QUEUED = _gauge("chordage_oldest_queued_seconds", "Since when the oldest turn in the queue is due.", "group")
RUNS_OPEN = _gauge("chordage_runs_open", "Runs that have not ended; counting stops at 10,000.", "group", "status")
GROUP_BUDGET = _gauge("chordage_group_budget", "How many runs of the group may work at once.", "group")
SUSPENSIONS_OPEN = _gauge(
    "chordage_suspensions_open", "Open questions, of the oldest 10,000.", "agent", "why"
)  # fmt: skip
OLDEST_SUSPENSION = _gauge("chordage_oldest_suspension_seconds", "Age of the oldest open question.", "agent", "why")
EXPIRING = _gauge(
    "chordage_suspensions_expiring_1h", "Open questions that expire within an hour.", "agent", "why"
)  # fmt: skip
POISON_RUNS = _gauge(
    "chordage_poison_runs", "Runs that were given up within 24 hours because they took their workers with them."
)
BUS_LAG = _gauge("chordage_bus_lag_seconds", "Age of the oldest journal row that is not on the bus.")
DELIVERIES_PENDING = _gauge("chordage_deliveries_pending", "Replies to be sent; counting stops at 10,000.")
DELIVERIES_DEAD = _gauge("chordage_deliveries_dead", "Replies that were given up; counting stops at 10,000.")
QUEUE_MESSAGES = _gauge("chordage_queue_messages", "Messages in a queue of Celery that no worker has taken.", "queue")
WORKERS_UP = _gauge("chordage_workers_up", "Processes that take messages from a queue.", "queue", "role")
# Of the process that answers.
STREAMS_OPEN = _gauge("chordage_streams_open", "Event streams that this process serves.", "face")
HTTP_SECONDS = _seconds(
    "chordage_http_request_seconds", "Until the answer of this process begins.", "face", "route", "status"
)

COUNTED = (
    TURNS_ENDED, RUNS_ENDED, TURN_WAIT, TURN_DURATION, MODEL_CALLS, MODEL_TOKENS, MODEL_COST, MODEL_DURATION,
    FIRST_TEXT, TOOL_CALLS, TOOL_DURATION, DECISIONS, DECISION_LATENCY, JOIN_DELAY, RESCUES, CLAIMS_EXPIRED,
)  # fmt: skip
GAUGES = (
    TURNS_QUEUED, OLDEST_QUEUED, RUNS_OPEN, GROUP_BUDGET, SUSPENSIONS_OPEN, OLDEST_SUSPENSION, EXPIRING, POISON_RUNS,
    BUS_LAG, DELIVERIES_PENDING, DELIVERIES_DEAD, QUEUE_MESSAGES, WORKERS_UP,
)  # fmt: skip
OF_PROCESS = (STREAMS_OPEN, HTTP_SECONDS)
FAMILIES: Mapping[str, MetricFamily] = {family.name: family for family in (*COUNTED, *GAUGES, *OF_PROCESS)}

_TOKENS = {
    "input": "input_tokens", "output": "output_tokens", "cache_read": "cached_tokens",
    "cache_write": "cache_write_tokens",
}  # fmt: skip
REPLIES = frozenset(
    {Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.REPLY_HELD, Checkpoint.COMPACTED,
     Checkpoint.COMPACTION_FAILED}
)  # fmt: skip
# The kinds whose body is read.
WITH_BODY = REPLIES | {Checkpoint.RUN_FINISHED, Checkpoint.TURN_DROPPED, Checkpoint.CALL_DECIDED}


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedRow:
    """A journal row, with what it does not say itself."""

    id: int
    run_id: str
    step: int
    kind: str  # a Checkpoint, or one of a newer version
    text: str | None  # its body, of the kinds in WITH_BODY
    at: datetime
    agent: str | None
    group: str | None
    due_at: datetime | None
    started_at: datetime | None
    done_at: datetime | None
    asked_at: datetime | None  # of a decision: when its question was asked
    round_ended_at: datetime | None  # of a reply: when the last call of the round before it ended
    is_copy: bool  # a fork has copied it from another thread: its original was counted
    was_held: bool  # the same reply was recorded before, for the consumer of a stepped run


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedCall:
    tool: str
    status: str
    started_at: datetime | None
    ended_at: datetime | None


def sums_of(rows: Iterable[CountedRow], calls: Iterable[EndedCall]) -> Sums:
    """What journal rows add to the counters. `calls`: of the runs that end with them."""
    sums: Sums = Counter()
    for row in rows:
        if not row.is_copy:
            _add_row(sums, row)
    for call in calls:
        count(sums, TOOL_CALLS, call.tool, call.status)
        if call.started_at is not None and call.ended_at is not None:
            observe(sums, TOOL_DURATION, _between(call.started_at, call.ended_at), call.tool, call.status)
    return sums


def _add_row(sums: Sums, row: CountedRow) -> None:
    body = {} if row.text is None else json.loads(row.text)
    group, agent = row.group or "", row.agent or ""
    match row.kind:
        case Checkpoint.USER_MESSAGE if row.step == 0 and row.started_at and row.due_at:
            observe(sums, TURN_WAIT, _between(row.due_at, row.started_at), group)
        case Checkpoint.USER_MESSAGE if row.step:  # it joined a run, which is of its own agent and group
            count(sums, TURNS_ENDED, group, agent, Disposition.STEERED)
        case Checkpoint.TURN_DROPPED:
            count(sums, TURNS_ENDED, group, agent, body["disposition"])
        case Checkpoint.CALL_DECIDED:
            count(sums, DECISIONS, body["action"])
            if row.asked_at is not None:
                observe(sums, DECISION_LATENCY, _between(row.asked_at, row.at), body["action"])
        case Checkpoint.RUN_FINISHED:
            _add_end(sums, row, body)
        case kind if kind in REPLIES and not row.was_held:
            _add_reply(sums, row, body)


def _add_end(sums: Sums, row: CountedRow, body: Mapping[str, Any]) -> None:
    group, agent = row.group or "", row.agent or ""
    reason, code = body["reason"], body.get("code") or ""
    count(sums, RUNS_ENDED, group, agent, reason, code)
    known = reason in frozenset(Reason)  # a reason of a newer version says nothing of the disposition
    disposition = disposition_of(Ending(reason=Reason(reason), code=code)) if known else OTHER
    count(sums, TURNS_ENDED, group, agent, disposition)
    if row.started_at is not None and row.done_at is not None:
        observe(sums, TURN_DURATION, _between(row.started_at, row.done_at), group)
    _add_attempts(sums, agent, body.get("attempts") or [])


def _add_reply(sums: Sums, row: CountedRow, body: Mapping[str, Any]) -> None:
    agent, model, usage, attempts = row.agent or "", body["model"], body["usage"], body["attempts"]
    for kind, name in _TOKENS.items():
        count(sums, MODEL_TOKENS, agent, model, kind, by=usage[name] or 0)
    count(sums, MODEL_COST, agent, model, by=usage["cost_nanos"] or 0)
    _add_attempts(sums, agent, attempts)
    if row.round_ended_at is not None and len(attempts) == 1:  # between several there are pauses
        observe(sums, JOIN_DELAY, _between(row.round_ended_at, row.at) - attempts[0]["seconds"])


def _add_attempts(sums: Sums, agent: str, attempts: Sequence[Mapping[str, Any]]) -> None:
    for attempt in attempts:
        count(sums, MODEL_CALLS, agent, attempt["model"], attempt["fault"] or "ok")
        observe(sums, MODEL_DURATION, attempt["seconds"], agent, attempt["model"])
        if attempt.get("first_text") is not None:
            observe(sums, FIRST_TEXT, attempt["first_text"], agent, attempt["model"])


def _between(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def count(sums: Sums, family: MetricFamily, *labels: str, by: int = 1) -> None:
    if by:
        sums[SumKey(family.name, _bounded(labels))] += by


def observe(sums: Sums, family: MetricFamily, seconds: float, *labels: str) -> None:
    """Clocks of two machines may differ, so a time may seem to be below zero."""
    seconds, values = max(0.0, seconds), _bounded(labels)
    bound = next((round(bound * 1000) for bound in family.bounds if seconds <= bound), UNBOUNDED)
    sums[SumKey(family.name, values, bound)] += 1
    sums[SumKey(family.name, values)] += round(seconds * family.scale)


def _bounded(labels: Sequence[str]) -> tuple[str, ...]:
    """Zero bytes are for no database."""
    return tuple(str(label)[:LONGEST_LABEL].replace("\x00", "") for label in labels)


def within_bounds(sums: Sums, known: Mapping[str, AbstractSet[tuple[str, ...]]]) -> Sums:
    """The sums without labels beyond MOST_SERIES. `known`: the labels that each counter has already."""
    series = {name: set(labels) for name, labels in known.items()}
    bounded: Sums = Counter()
    for key, number in sorted(sums.items()):
        of_name = series.setdefault(key.name, set())
        labels = key.labels
        if labels not in of_name and len(of_name) >= MOST_SERIES:
            family = FAMILIES[key.name]
            pairs = zip(family.labels, labels, strict=True)
            labels = tuple(OTHER if name in family.free else value for name, value in pairs)
        of_name.add(labels)
        bounded[SumKey(key.name, labels, key.bucket)] += number
    return bounded
