"""All tables, one schema for SQLite and PostgreSQL. What must never be stored is a constraint here, not an `if`.

The invariants that carry the product are unique indexes: one open run per thread, one turn per dedupe key, one open
question per call, and one answer per question.

A row that is only written in a transaction that created or locked the row it points to has no foreign key: the check
would lock that row a second time, and write to it, at every step of every turn.

Triggers write four notes into the journal: a turn was queued, a turn ended without a run, a call was suspended, a
decision was made. They are journal rows so that one order and one cursor cover every fact on the bus. A trigger costs
no statement, and no code path that ends a turn in the queue can forget it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    func,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction
from sqlalchemy.types import TypeDecorator

from chordage.orchestrator.core.approvals import SuspensionStatus
from chordage.orchestrator.core.deliveries import DeliveryStatus
from chordage.orchestrator.core.model import COUNTS
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_RUN, CallStatus, RunStatus, TurnStatus
from chordage.orchestrator.store.contents import Contents, ContentsForm


class UtcTime(TypeDecorator[datetime]):
    """A UTC time. SQLite forgets the zone on the way in; it is put back on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is not None and value.tzinfo is None:
            raise ValueError(f"a time without a time zone cannot be stored: {value}")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class space_of(GenericFunction[str]):  # noqa: N801 - it is written as a function of SQL
    """The space of a thread's id: what is before its first colon. An expression, because an id never changes space.

    It has no bound values: an index over an expression serves only statements that contain the same text.
    """

    type = Text()
    inherit_cache = True
    name = "space_of"


@compiles(space_of)
def _space_in_sqlite(element: space_of, compiler: Any, **options: Any) -> str:
    of = compiler.process(element.clauses, **options)
    return f"substr({of}, 1, instr({of}, ':') - 1)"


@compiles(space_of, "postgresql")
def _space_in_postgres(element: space_of, compiler: Any, **options: Any) -> str:
    return f"split_part({compiler.process(element.clauses, **options)}, ':', 1)"


# Keeps the order of keys on both databases; PostgreSQL's jsonb would sort them. No statement looks inside.
Json = JSON(none_as_null=True)

# SQLite assigns ids only to a key that is a plain INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _one_of(column: str, values: Iterable[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in sorted(values))
    return f"{column} IN ({listed})"


def _partial_index(
    name: str, *columns: ColumnElement[Any], where: str | ColumnElement[bool], unique: bool = False
) -> None:
    condition = text(where) if isinstance(where, str) else where
    Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


UNSETTLED = frozenset({SuspensionStatus.OPEN, SuspensionStatus.DECIDED})

Id = String(200)
SpacedId = String(400)  # an id with the prefix of its space: core/message.py


def _ancestry() -> list[Column[Any]]:
    """The position of a child in its tree: core/records.Kin."""
    return [
        Column("parent_run", Id),
        Column("parent_call", Id),
        Column("root_run", Id),
        Column("root_thread", SpacedId),
        Column("path", Text),
        Column("max_depth", Integer),
    ]


groups = Table(
    "groups",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("budget", Integer),  # null: as the setting says
    Column("served", String(200)),  # the last tenant that was served: store/fairness.py
    # 1: a ready turn found no free place, so each run that frees one sends the next wake-up: store/groups.py
    Column("hand_on", Integer, nullable=False, server_default="0"),
    CheckConstraint("budget >= 0", name="budget_is_no_debt"),
)

threads = Table(
    "threads",
    metadata,
    Column("id", SpacedId, primary_key=True),
    Column("agent", String(200), nullable=False),
    Column("arrivals", Integer, nullable=False),  # how many turns have arrived; gives the next one its number
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("compact_asked", Integer),  # how often a summary was requested; null: never
    Column("fork_of", SpacedId),  # the thread whose history it began with
)

Index("ix_threads_recent", threads.c.updated_at, threads.c.id)
# A caller with a few threads among a million of others has them on one page: also ix_turns_space, ix_outbox_space. Each
# has a condition that every row meets, as those of the line of a thread below: only lists of a space repeat it.
thread_space: ColumnElement[str] = space_of(threads.c.id)
_partial_index("ix_threads_space", thread_space, threads.c.updated_at, threads.c.id, where="arrivals >= 0")
_partial_index("ix_threads_forks", threads.c.fork_of, where="fork_of IS NOT NULL")

turns = Table(
    "turns",
    metadata,
    Column("id", Id, primary_key=True),
    Column("thread_id", SpacedId, ForeignKey("threads.id"), nullable=False),
    Column("arrival", Integer, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("grp", String(20), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("tenant", String(200), nullable=False),
    Column("status", String(20), nullable=False),
    # 1: the next of its thread to start, and the thread has no open run. 2: the same, asleep until its not_before.
    # Written by the transaction that makes it true.
    Column("ready", Integer, nullable=False),
    Column("steers", Integer, nullable=False),  # 1: a run at work on its thread may take it in before it starts
    Column("disposition", String(20)),
    Column("detail", Contents("turns.detail")),  # why a turn ended that never started; for others see the run
    Column("run_id", Id),
    Column("origin", String(20), nullable=False),
    Column("channel", String(200)),
    Column("sender", String(20), nullable=False),
    Column("text", Contents("turns.text"), nullable=False),
    Column("meta", Contents("turns.meta", ContentsForm.JSON), nullable=False),
    Column("strategy", String(50), nullable=False),
    Column("control", String(10), nullable=False),
    Column("source", String(300), nullable=False),
    Column("sent_by", String(200)),  # a key, and the user for whom it spoke; `local`; null: not known
    Column("space", String(200)),  # of the API caller; null: sent by the operator or the room
    Column("dedupe_key", String(200)),
    Column("coalesce_key", SpacedId),
    Column("into_turn", Id),  # if its disposition is merged
    Column("max_rounds", Integer),  # its own limit; null: only its agent's
    Column("timeout_ms", BigInteger),
    Column("fork_of", Id),  # the run that its own run is a fork of
    Column("traceparent", String(55)),  # of its caller, by W3C's rules
    Column("client_tools", Contents("turns.client_tools", ContentsForm.JSON)),  # of its caller: core/client_tools.py
    Column("reply_target", Contents("turns.reply_target", ContentsForm.JSON)),
    Column("not_before", UtcTime),
    Column("due_at", UtcTime, nullable=False),
    Column("deadline", UtcTime),
    Column("nudge_at", UtcTime, nullable=False),  # when its wake-up counts as lost
    *_ancestry(),
    Column("cancel_asked", Integer),  # 1: a child whose result is no longer needed
    Column("queued_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("done_at", UtcTime),
    UniqueConstraint("thread_id", "arrival"),
    CheckConstraint(_one_of("status", TurnStatus), name="status"),
    CheckConstraint("(status = 'done') = (disposition IS NOT NULL)", name="done_has_disposition"),
    CheckConstraint("(status = 'done') = (done_at IS NOT NULL)", name="done_has_time"),
    CheckConstraint("(coalesce(disposition, '') = 'merged') = (into_turn IS NOT NULL)", name="merged_says_into"),
    CheckConstraint("arrival >= 0 AND rank >= -1", name="stands_in_line_and_queue"),
    # A caller's message stays in the caller's space, even if the code has a bug.
    CheckConstraint("space IS NULL OR substr(thread_id, 1, length(space) + 1) = space || ':'", name="in_its_space"),
)
_partial_index(
    "uq_turns_dedupe",
    turns.c.agent,
    turns.c.source,
    turns.c.dedupe_key,
    unique=True,
    where=turns.c.dedupe_key.is_not(None),
)
# At most one queued turn for the same work, and one open turn for an agent's will.
_partial_index(
    "uq_turns_coalesce",
    turns.c.agent,
    turns.c.grp,
    turns.c.coalesce_key,
    unique=True,
    where="status = 'queued' AND coalesce_key IS NOT NULL",
)
_partial_index(
    "uq_turns_will",
    turns.c.origin,
    turns.c.agent,
    unique=True,
    where="origin = 'will' AND status IN ('active', 'queued')",
)
_partial_index(
    "ix_turns_ready", turns.c.grp, turns.c.tenant, turns.c.due_at, turns.c.id, where="status = 'queued' AND ready = 1"
)
_partial_index("ix_turns_asleep", turns.c.due_at, where="status = 'queued' AND ready = 2")
_partial_index("ix_turns_behind", turns.c.thread_id, where="status = 'queued' AND ready = 0")
# The line of a thread and the queue of a group. Each index has a condition that every turn meets, and only those
# statements repeat it that are meant to use the index: while both are empty, PostgreSQL cannot tell which is better
# (`still` in predicates.py).
_partial_index(
    "ix_turns_line", turns.c.thread_id, turns.c.rank, turns.c.arrival, where="status = 'queued' AND rank >= -1"
)
_partial_index("ix_turns_queue", turns.c.grp, turns.c.queued_at, turns.c.id, where="status = 'queued' AND arrival >= 0")
_partial_index("ix_turns_steering", turns.c.thread_id, turns.c.arrival, where="status = 'queued' AND steers = 1")
_partial_index("ix_turns_deadline", turns.c.deadline, where="status = 'queued' AND deadline IS NOT NULL")

# Runs have no such index: each step of a run would write to it. Those of a space are found by their turns.
turn_space: ColumnElement[str] = space_of(func.coalesce(turns.c.root_thread, turns.c.thread_id))
_partial_index("ix_turns_space", turn_space, turns.c.id, where="steers >= 0")
# What failed is what people look for, and is rare. No turn that ends well is written to it.
_partial_index("ix_turns_failed", turns.c.id, where="disposition = 'failed'")

# One child for each call, even if the code has a bug.
_partial_index("uq_turns_child", turns.c.parent_call, unique=True, where="parent_call IS NOT NULL")
_partial_index("ix_turns_children", turns.c.parent_run, where="parent_run IS NOT NULL")
_partial_index("ix_turns_unwanted", turns.c.id, where="cancel_asked = 1 AND status <> 'done'")

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("thread_id", SpacedId, nullable=False),
    Column("turn_id", Id, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("grp", String(20), nullable=False),
    Column("tenant", String(200), nullable=False),  # of its turn
    Column("strategy", String(50), nullable=False),
    Column("control", String(10), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(30)),
    Column("code", String(100)),
    Column("detail", Contents("runs.detail")),
    Column("epoch", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("phase", String(20), nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("resends", Integer, nullable=False),
    Column("expiries", Integer, nullable=False),
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("moved_by", String(200)),  # the process that started it, or opened its step
    Column("lease_until", UtcTime),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("cache_write_tokens", Integer, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False, server_default="0"),  # of the replies that have a price
    Column("unpriced", Integer, nullable=False, server_default="0"),  # replies without one
    # Of the six above, what its sub-agents have used: added when each ends.
    *(
        Column(f"children_{name}", BigInteger if name == "cost_nanos" else Integer, nullable=False, server_default="0")
        for name in COUNTS
    ),
    Column("suspended", Integer, nullable=False),  # 1 once a call of it was suspended: its rounds need more checks
    Column("rested_ms", BigInteger, nullable=False),  # how long it has waited for decisions
    Column("rested_since", UtcTime),
    Column("replay_from", Integer),  # the lowest step whose calls are carried out again
    *_ancestry(),
    Column("max_rounds", Integer),  # from its turn; null: only its agent's
    Column("timeout_ms", BigInteger),
    Column("fork_of", Id),  # from its turn
    Column("agent_digest", String(64)),  # of the version of its agent that it has: runtime.py; null: not known
    Column("children", Integer, nullable=False),  # how many sub-agents it has started
    Column("steers", Integer, nullable=False),  # 1 while a message waits to be taken in at its next step
    Column(
        "stalled", Integer, nullable=False, server_default="0"
    ),  # 1 while it waits for its agent's repair, outside the budget
    # Its place in the budget of its group while it is at work; null: none of its own, since it was resumed. No two runs
    # at work have the same: store/starts.py.
    Column("place", Integer),
    # How it ends once no call is suspended.
    Column("kept_reason", String(30)),
    Column("kept_code", String(100)),
    Column("kept_detail", Contents("runs.kept_detail")),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    CheckConstraint(_one_of("status", RunStatus), name="status"),
    CheckConstraint("(status = 'running') = (reason IS NULL)", name="reason_unless_running"),
    CheckConstraint("(status = 'done') = (ended_at IS NOT NULL)", name="done_has_time"),
    CheckConstraint("epoch >= 1", name="has_epoch"),
    CheckConstraint("stalled = 0 OR (stalled = 1 AND status = 'running')", name="stalls_at_work"),
    CheckConstraint("cost_nanos >= 0 AND unpriced >= 0", name="costs_no_less_than_nothing"),
)
_partial_index("uq_runs_open_thread", runs.c.thread_id, unique=True, where=_one_of("status", OPEN_RUN))
_partial_index("uq_runs_place", runs.c.grp, runs.c.place, unique=True, where="status = 'running' AND stalled = 0")
_partial_index("ix_runs_waiting", runs.c.rested_since, runs.c.id, where="status = 'waiting'")
# With a condition that every run meets, as those of turns: a count of places must not read all leases.
_partial_index("ix_runs_lease", runs.c.lease_until, where="status = 'running' AND epoch >= 1")

calls = Table(
    "calls",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", Id, nullable=False),
    Column("thread_id", SpacedId, nullable=False),
    Column("step", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("ask_id", String(200), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("tool", String(200), nullable=False),
    Column("arguments", Contents("calls.arguments", ContentsForm.JSON), nullable=False),
    Column("effect", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("code", String(100)),
    Column("content", Contents("calls.content")),
    Column("full_result", Contents("calls.full_result")),
    Column("progress", Contents("calls.progress")),
    Column("claim_token", String(100)),
    Column("worker", String(200)),
    Column("lease_until", UtcTime),
    Column("resends", Integer, nullable=False),
    Column("expiries", Integer, nullable=False),
    Column("suspension_id", Id),  # the newest
    Column("replayed_at", Integer),  # the step in which it was last carried out again
    Column("placed", Text),  # where it runs and why: core/placement.py
    Column("answered_from", Id),  # the call of the source of a fork whose result it has
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    UniqueConstraint("run_id", "step", "place", "generation"),
    UniqueConstraint("run_id", "ask_id", "generation"),
    CheckConstraint(_one_of("status", CallStatus), name="status"),
    CheckConstraint(
        "(status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
        name="ended_has_time",
    ),
)
# A recorded result answers one call of a fork, even if the code has a bug.
_partial_index(
    "uq_calls_answered_from", calls.c.run_id, calls.c.answered_from, unique=True, where="answered_from IS NOT NULL"
)
_partial_index("ix_calls_lease", calls.c.lease_until, where=_one_of("status", IN_FLIGHT_CALL))

# How long the calls of a tool take, in seconds: what decides where they run.
tool_durations = Table(
    "tool_durations",
    metadata,
    Column("agent", String(200), primary_key=True),
    Column("tool", String(200), primary_key=True),
    Column("mean", Float, nullable=False),
    Column("last", Float, nullable=False),
    Column("at", UtcTime, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("thread_id", SpacedId, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("step", Integer, nullable=False),
    Column("kind", String(30), nullable=False),
    Column("body", Contents("journal.body", ContentsForm.JSON), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("upto", Serial),  # of a summary: the last row that it replaces
    # A checkpoint is written once, even if every guard before it fails.
    UniqueConstraint("run_id", "step", "kind"),
    CheckConstraint(f"(kind = '{Checkpoint.COMPACTED}') = (upto IS NOT NULL)", name="summary_says_upto"),
    sqlite_autoincrement=True,
)
Index("ix_journal_thread", journal.c.thread_id, journal.c.id)
# Without `kind` in the key SQLite would rather read all rows of the thread.
_partial_index(
    "ix_journal_rolled_back", journal.c.thread_id, journal.c.kind, journal.c.run_id, where="kind = 'RolledBack'"
)
_partial_index("ix_journal_upto", journal.c.thread_id, journal.c.upto, where="upto IS NOT NULL")

suspensions = Table(
    "suspensions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("call_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("thread_id", SpacedId, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("step", Integer, nullable=False),
    Column("tool", String(200), nullable=False),
    Column("why", String(30), nullable=False),
    Column("prompt", Contents("suspensions.prompt"), nullable=False),
    Column("schema", Contents("suspensions.schema", ContentsForm.JSON)),
    Column("resume_mode", String(40), nullable=False),
    Column("digest", String(64), nullable=False),  # of the arguments in question
    Column("status", String(20), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("on_expiry", String(20), nullable=False),
    Column("default", Contents("suspensions.default", ContentsForm.JSON)),
    Column("escalated_at", UtcTime),
    Column("about_claim", String(100)),  # the claim whose holder may still bring the result
    Column("root_thread", SpacedId),  # of its run; null: the run is a root, and its own thread is that
    CheckConstraint(_one_of("status", SuspensionStatus), name="status"),
    CheckConstraint("about_claim IS NULL OR why = 'outcome_unknown'", name="only_of_the_unknown"),
)
# One open question for each call.
_partial_index("uq_suspensions_call", suspensions.c.call_id, unique=True, where=_one_of("status", UNSETTLED))
Index("ix_suspensions_run", suspensions.c.run_id)
# The inbox of all, and of one space: a tenant that asks little does not read what others ask.
suspension_space: ColumnElement[str] = space_of(func.coalesce(suspensions.c.root_thread, suspensions.c.thread_id))
for _name, _asked in (("inbox", "why <> 'child'"), ("children", "why = 'child'")):
    _page = (suspensions.c.created_at, suspensions.c.id)
    _partial_index(f"ix_suspensions_{_name}", *_page, where=f"status = 'open' AND {_asked}")
    _partial_index(f"ix_suspensions_{_name}_space", suspension_space, *_page, where=f"status = 'open' AND {_asked}")
_partial_index(
    "ix_suspensions_expiry",
    suspensions.c.expires_at,
    where="status = 'open' AND expires_at IS NOT NULL AND escalated_at IS NULL",
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True),
    # One answer for each question; it cannot answer a later question about the same call.
    Column("suspension_id", Id, ForeignKey("suspensions.id"), nullable=False, unique=True),
    Column("call_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("key", String(200)),
    Column("action", String(20), nullable=False),
    Column("payload", Contents("decisions.payload", ContentsForm.JSON)),
    Column("edited_args", Contents("decisions.edited_args", ContentsForm.JSON)),
    Column("edited_digest", String(64)),
    Column("reason", Contents("decisions.reason")),
    Column("source", String(200), nullable=False),
    Column("decided_by", String(200), nullable=False),  # a key, or `local` or `cli`; else as the source
    Column("created_at", UtcTime, nullable=False),
    Column("applied_at", UtcTime),
)
Index("ix_decisions_call", decisions.c.call_id)

# The state that plugins keep. The last writer and its round tell a conflict of parallel calls from a later change.
plugin_state = Table(
    "plugin_state",
    metadata,
    Column("scope", String(20), primary_key=True),
    Column("owner", Id, primary_key=True),  # the thread, the run or the call
    Column("key", String(200), primary_key=True),
    Column("value", Contents("plugin_state.value", ContentsForm.JSON)),
    Column("run_id", Id),
    Column("step", Integer),
    Column("writer", Id),
    Column("merge", String(20)),
)

# The settings and orders of a stepped turn's consumer. Locked after its run.
stepped = Table(
    "stepped",
    metadata,
    Column("turn_id", Id, primary_key=True),
    Column("rev", Integer, nullable=False),
    Column("drive", String(10), nullable=False),
    Column("going", Integer, nullable=False),
    Column("mutated", Integer, nullable=False),
    Column("parked", Integer, nullable=False),
    Column("reply_step", Integer),
    Column("iteration", Integer, nullable=False),
    Column("max_iterations", Integer),
    Column("cap_policy", String(20), nullable=False),
    Column("hold_seconds", Float),
    Column("on_held", String(20), nullable=False),
    Column("held_until", UtcTime),
    Column("params", Contents("stepped.params", ContentsForm.JSON), nullable=False),
    Column("options", Contents("stepped.options", ContentsForm.JSON), nullable=False),
    Column("given", Contents("stepped.given", ContentsForm.JSON), nullable=False),
    Column("replaces", Integer, nullable=False),
    Column("steers", Contents("stepped.steers", ContentsForm.JSON), nullable=False),
    Column("verdicts", Contents("stepped.verdicts", ContentsForm.JSON), nullable=False),
    Column("withheld", Contents("stepped.withheld", ContentsForm.JSON), nullable=False),
    Column("sent_hash", String(64)),
    Column("error", Contents("stepped.error", ContentsForm.JSON)),
    Column("compacts", Integer),
    Column("plan", Contents("stepped.plan", ContentsForm.JSON)),
    CheckConstraint("max_iterations IS NULL OR max_iterations >= 1", name="at_least_one_iteration"),
)
_partial_index("ix_stepped_held_until", stepped.c.held_until, where="held_until IS NOT NULL")

# The response to each idempotency key.
ops = Table(
    "ops",
    metadata,
    Column("turn_id", Id, primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("response", Contents("ops.response", ContentsForm.JSON), nullable=False),
    Column("at", UtcTime, nullable=False),
)

# From where a turn forks a run, and what is different in it: core/forking.py.
forks = Table(
    "forks",
    metadata,
    Column("turn_id", Id, primary_key=True),
    Column("run_id", Id, nullable=False),  # the source
    Column("step", Integer, nullable=False),
    Column("kept", Integer, nullable=False),
    Column("arguments", Contents("forks.arguments", ContentsForm.JSON), nullable=False),
    Column("model", String(200)),
    Column("instructions", Contents("forks.instructions")),
    Column("effects", Json, nullable=False),
    CheckConstraint("step >= 0 AND kept >= 0", name="is_in_the_run"),
)
Index("ix_forks_run", forks.c.run_id)  # its source is kept as long as it is

# Deliveries: one row for each turn whose answer is sent somewhere.
outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("thread_id", SpacedId, nullable=False),
    Column("turn_id", Id, nullable=False, unique=True),
    Column("target", Contents("outbox.target", ContentsForm.JSON), nullable=False),
    Column("receiver", String(300), nullable=False),  # the unit of the limit on deliveries at once
    Column("body", Contents("outbox.body", ContentsForm.JSON), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("position", Serial, nullable=False),  # the journal row that must be on the bus first
    Column("status", String(10), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("forgiven", Integer, nullable=False),  # attempts made before a dead letter was sent again
    Column("next_at", UtcTime, nullable=False),  # when it is due; of a claimed one, when its lease runs out
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("error", Contents("outbox.error")),
    Column("sent_at", UtcTime),
    Column("dead_at", UtcTime),
    CheckConstraint(_one_of("status", DeliveryStatus), name="status"),
    CheckConstraint("(status = 'sent') = (sent_at IS NOT NULL)", name="sent_has_time"),
    CheckConstraint("(status = 'dead') = (dead_at IS NOT NULL)", name="dead_has_time"),
    CheckConstraint("attempts >= 0", name="stands_in_line"),
    sqlite_autoincrement=True,
)
_partial_index("ix_outbox_due", outbox.c.receiver, outbox.c.next_at, outbox.c.id, where="status = 'pending'")
_partial_index("ix_outbox_line", outbox.c.thread_id, outbox.c.id, where="status = 'pending' AND attempts >= 0")
_partial_index("ix_outbox_in_hand", outbox.c.receiver, where="status = 'pending' AND claim_token IS NOT NULL")
_partial_index("ix_outbox_dead", outbox.c.id, where="status = 'dead'")
delivery_space: ColumnElement[str] = space_of(outbox.c.thread_id)
_partial_index("ix_outbox_space", delivery_space, outbox.c.id, where="forgiven >= 0")

# How far the journal has been copied to the bus, and which process copies it; and how far it has been counted.
projection = Table(
    "projection",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("bus", Id, nullable=False),  # identifies this database, so that Redis knows whose bus it holds
    Column("generation", Integer, nullable=False),  # plus one each time the bus is rebuilt
    Column("position", Serial, nullable=False),
    Column("moved_at", UtcTime),
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("lease_until", UtcTime),  # of the claim; without a claim, the time of the next attempt
    Column("failures", Integer, nullable=False),
    Column("error", Text),
    Column("error_at", UtcTime),
)

# What the journal adds up to, for monitors: written in the transaction that moves the row `metrics` of `projection`.
metric_sums = Table(
    "metric_sums",
    metadata,
    Column("name", String(60), primary_key=True),
    Column("labels", String(1000), primary_key=True),  # their values, as a JSON list
    Column("bucket", BigInteger, primary_key=True, autoincrement=False),  # core/metrics.py: TOTAL, or an upper bound
    Column("value", BigInteger, nullable=False),
    CheckConstraint("value >= 0", name="counts_up"),
)

# Polled channels: how far each binding has read.
polls = Table(
    "polls",
    metadata,
    Column("name", String(200), primary_key=True),  # of the binding in channels.toml
    Column("cursor", Text),
    Column("revision", Integer, nullable=False),  # counts the writes: a poller that read an older one stores nothing
    Column("holder", String(200)),  # the process that polls it
    Column("lease_until", UtcTime),
    Column("looked_at", UtcTime),
    Column("stored_at", UtcTime),
    Column("failures", Integer, nullable=False),  # in a row
    Column("error", Contents("polls.error")),  # it may quote what was received
    Column("next_look", UtcTime),  # after a failure, the time of the next poll
    Column("taken", Integer, nullable=False),  # messages that became turns
    Column("doubled", Integer, nullable=False),  # messages that had come before
    Column("refused", Integer, nullable=False),
    Column("passed_over", Integer, nullable=False),  # messages that are not for an agent
)

# Messages of polled channels that did not become turns.
refusals = Table(
    "refusals",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("source", String(200), nullable=False),
    Column("key", String(200), nullable=False),
    Column("why", Contents("refusals.why"), nullable=False),
    Column("excerpt", Contents("refusals.excerpt"), nullable=False),
    Column("at", UtcTime, nullable=False),
    UniqueConstraint("source", "key"),  # refused once, however often it comes
    sqlite_autoincrement=True,
)

Index("ix_refusals_recent", refusals.c.source, refusals.c.id)

# What is known of each task, chore and will. Its row is locked before any other.
pulse = Table(
    "pulse",
    metadata,
    Column("kind", String(10), primary_key=True),
    Column("key", Id, primary_key=True),
    Column("path", Text, nullable=False),
    Column("rev", Integer, nullable=False),  # counts the writes, and guards each of them
    Column("state", String(10), nullable=False),
    Column("paused", Integer, nullable=False),  # by its file, or by a person
    Column("paused_by", String(200)),  # the person: a key, `local` or `cli`; null: not by a person
    Column("seen", String(64)),  # hash of the text given to its newest turn
    Column("own", String(64)),  # hash of the text as that turn's tools left it
    Column("schedule", Text),
    Column("anchor", UtcTime),
    Column("next_due", UtcTime),
    Column("last_slot", UtcTime),
    Column("count", Integer, nullable=False),
    Column("merged", Integer, nullable=False),  # times that came while it could not start, and share a turn
    Column("missed", Integer, nullable=False),  # times that came while it was paused, and had none
    Column("turn_id", Id),
    Column("open", Integer, nullable=False),  # 1: the end of that turn is not recorded yet
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("disposition", String(20)),
    Column("run_id", Id),
    Column("gone_at", UtcTime),
    CheckConstraint("kind IN ('chore', 'task', 'will')", name="kind"),
    CheckConstraint("state IN ('done', 'gone', 'live')", name="state"),
    CheckConstraint("open = 0 OR turn_id IS NOT NULL", name="open_has_turn"),
    CheckConstraint("paused_by IS NULL OR paused = 1", name="paused_by_has_paused"),
)
_partial_index("ix_pulse_due", pulse.c.next_due, where="state = 'live' AND paused = 0 AND open = 0")
_partial_index("ix_pulse_open", pulse.c.turn_id, where="open = 1")
_partial_index("ix_pulse_gone", pulse.c.gone_at, where="state = 'gone'")

# The processes that carry out work: what one of them held is sent again as soon as it is gone.
processes = Table(
    "processes",
    metadata,
    Column("id", String(200), primary_key=True),  # as in runs.claim_worker, runs.moved_by and calls.worker
    Column("machine", String(300), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("born", String(100), nullable=False),
    Column("queues", Text),  # from which it takes messages, with commas; null: not known
    Column("version", String(50)),  # of Chordage; null: not known
    Column("drill", Integer, nullable=False, server_default="0"),  # whether a drill may kill it
    Column("agents", Json),  # the digest of each agent whose turns it can carry out, by name; null: not known
    Column("seen_at", UtcTime, nullable=False),
    Column("gone_at", UtcTime),
)
_partial_index("ix_processes_gone", processes.c.gone_at, where="gone_at IS NOT NULL")

# What agents were when a process first used them: core/agent_versions.py. A row is written once.
agent_versions = Table(
    "agent_versions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("agent", String(200), nullable=False),
    Column("definition", Contents("agent_versions.definition", ContentsForm.JSON), nullable=False),
    Column("first_seen_at", UtcTime, nullable=False),
    Column("first_seen_by", String(50)),  # the version of Chordage; null: not known
)
Index("ix_agent_versions_agent", agent_versions.c.agent, agent_versions.c.first_seen_at)

# Work that was sent again because its worker was lost: written by rescue alone, read by the timeline of a run.
takeovers = Table(
    "takeovers",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("run_id", Id, nullable=False),
    Column("call_id", Id),  # null: a model call
    Column("step", Integer, nullable=False),
    Column("worker", String(200)),
    Column("lost_at", UtcTime, nullable=False),  # its last sign of life
    Column("noticed_at", UtcTime, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_takeovers_run", takeovers.c.run_id)

# Each time that a tool of a drill's canary began. Nothing keeps a second row of a call out: the drill counts them.
executions = Table(
    "executions",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("run_id", Id, nullable=False),
    Column("call_id", Id, nullable=False),
    Column("worker", String(200), nullable=False),
    Column("at", UtcTime, nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_executions_run", executions.c.run_id)
Index("ix_executions_call", executions.c.call_id)

# Signed bytes that were accepted: a copy under another id is recognised by them.
replays = Table(
    "replays",
    metadata,
    Column("source", String(300), primary_key=True),  # as in its turn
    Column("digest", String(100), primary_key=True),  # of the signed bytes
    Column("turn_id", Id, nullable=False),
    Column("until", UtcTime, nullable=False),  # after that the same bytes may be a new delivery
)
Index("ix_replays_until", replays.c.until)

# The keys of callers over HTTP. No table of these is called `api_keys`: many an application has one.
caller_keys = Table(
    "caller_keys",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("hash", String(64), nullable=False),  # SHA-256 of the secret, which is stored nowhere
    Column("name", String(100), nullable=False),
    Column("tenant", String(64)),
    Column("scopes", Json, nullable=False),
    Column("agents", Json),  # null: all
    Column("groups", Json),  # null: all
    Column("act_as", Integer, nullable=False),  # 1: it may speak for users
    Column("created_by", String(200), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("last_used_at", UtcTime),  # to the minute
    Column("revoked_at", UtcTime),
)
Index("ix_caller_keys_recent", caller_keys.c.created_at, caller_keys.c.id)
Index("ix_caller_keys_tenant", caller_keys.c.tenant, caller_keys.c.created_at, caller_keys.c.id)
_partial_index("ix_caller_keys_in_use", caller_keys.c.expires_at, where="revoked_at IS NULL")

# Who decided, who changed keys and who intervened. Rescue deletes what is older than the settings keep.
caller_audit = Table(
    "caller_audit",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("at", UtcTime, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("on_behalf", String(100)),  # the user for whom the actor spoke
    Column("tenant", String(64)),  # of the actor
    Column("address", String(100)),
    Column("action", String(30), nullable=False),
    Column("about", Id, nullable=False),
    Column("detail", Contents("caller_audit.detail", ContentsForm.JSON), nullable=False),
    sqlite_autoincrement=True,
)
Index("ix_caller_audit_recent", caller_audit.c.at, caller_audit.c.id)
Index("ix_caller_audit_tenant", caller_audit.c.tenant, caller_audit.c.at, caller_audit.c.id)
Index("ix_caller_audit_actor", caller_audit.c.actor, caller_audit.c.at, caller_audit.c.id)
Index("ix_caller_audit_action", caller_audit.c.action, caller_audit.c.at, caller_audit.c.id)

# One action on many turns or deliveries. Its row is locked before any other, and moves with each target.
bulk_jobs = Table(
    "bulk_jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("action", String(10), nullable=False),
    Column(
        "wanted", Contents("bulk_jobs.wanted", ContentsForm.JSON)
    ),  # the filter; null: `chosen`, or all dead letters
    Column("chosen", Json),  # the targets, if they were named, in their order
    Column("query", Contents("bulk_jobs.query")),
    Column("reason", Contents("bulk_jobs.reason")),
    Column("space", SpacedId),  # of the caller; null: every space
    Column("agents", Json),  # null: all
    Column("groups", Json),  # null: all
    Column("asked_by", String(200), nullable=False),
    Column("address", String(100)),
    Column("request_key", String(200)),
    Column("digest", String(64), nullable=False),  # of what was asked for under this key
    Column("counted", BigInteger, nullable=False),
    Column("is_estimate", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("position", Id, nullable=False),  # the target that was passed last
    Column("done", Integer, nullable=False),
    Column("refused", Integer, nullable=False),
    Column("claim_token", Id),
    Column("claim_worker", String(200)),
    Column("lease_until", UtcTime, nullable=False),  # after that rescue sends for it again
    Column("created_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    UniqueConstraint("asked_by", "request_key"),
    CheckConstraint("action IN ('cancel', 'redeliver', 'retry')", name="action"),
    CheckConstraint("state IN ('done', 'open', 'stopped')", name="state"),
    CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_or_open"),
    CheckConstraint("wanted IS NULL OR chosen IS NULL", name="filter_or_chosen"),
)
Index("ix_bulk_jobs_space", bulk_jobs.c.space, bulk_jobs.c.id)
_partial_index("ix_bulk_jobs_due", bulk_jobs.c.lease_until, where="state = 'open'")

# What a bulk job did not do, and why. No target is in it twice.
bulk_refusals = Table(
    "bulk_refusals",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("target", Id, primary_key=True),
    Column("why", Text, nullable=False),
)

# What the processes of the HTTP server share for the console: the secret that signs sessions, and one-time links.
web_secrets = Table(
    "web_secrets",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("value", String(100), nullable=False),
)
login_links = Table(
    "login_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("expires_at", UtcTime, nullable=False),
)
Index("ix_login_links_expires_at", login_links.c.expires_at)
web_sessions = Table(
    "web_sessions",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("key_id", String(20)),  # null: it began with a link
    Column("tenant", String(64)),  # of the key
    Column("address", String(100)),
    Column("began_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)
Index("ix_web_sessions_expires_at", web_sessions.c.expires_at)
Index("ix_web_sessions_recent", web_sessions.c.began_at, web_sessions.c.id)
_partial_index("ix_web_sessions_key", web_sessions.c.key_id, where="key_id IS NOT NULL")

# What a page may send in place of a key, once, to follow one stream.
stream_tickets = Table(
    "stream_tickets",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("path", Text, nullable=False),
    Column("caller", String(200), nullable=False),
    Column("on_behalf", String(100)),  # the user for whom the caller speaks
    Column("expires_at", UtcTime, nullable=False),
)
Index("ix_stream_tickets_expires_at", stream_tickets.c.expires_at)

# Addresses for one question each, by which a person without an account may answer it once.
question_links = Table(
    "question_links",
    metadata,
    Column("id", Id, primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # of the address, which is stored nowhere
    Column("question_id", Id, nullable=False),
    Column("digest", String(64), nullable=False),  # of the arguments it was made for
    Column("made_by", String(200), nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("used_at", UtcTime),
    Column("decision_id", Id),
    CheckConstraint("(used_at IS NULL) = (decision_id IS NULL)", name="used_has_decision"),
)
Index("ix_question_links_expires_at", question_links.c.expires_at)

# Searches of the console under names. The number of places bounds how many one owner has.
saved_views = Table(
    "saved_views",
    metadata,
    Column("owner", String(200), primary_key=True),  # the id of a caller
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("name", String(60), nullable=False),
    Column("query", Text, nullable=False),
    Column("shared", Integer, nullable=False),  # 1: every caller sees it
    Column("created_at", UtcTime, nullable=False),
    UniqueConstraint("owner", "name"),
    CheckConstraint("place BETWEEN 1 AND 30", name="place"),
)
_partial_index("ix_saved_views_shared", saved_views.c.name, where="shared = 1")


# The keys with which contents were ever encrypted, each with something to see whether a process has it.
cipher_keys = Table(
    "cipher_keys",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("proof", Contents("cipher_keys.proof"), nullable=False),
)

# Every column in which people, models or tools have written: what a cipher encrypts. `erase` leaves none of it.
CONTENTS: dict[str, tuple[str, ...]] = {
    table.name: names
    for table in metadata.sorted_tables
    if (names := tuple(column.name for column in table.columns if isinstance(column.type, Contents)))
}


# The triggers that write notes into the journal.

_WITHOUT_RUN = "NEW.status = 'done' AND NEW.run_id IS NULL"
_NOTE_QUEUED = "turn: id, agent: agent, group: grp, origin: origin, tenant: tenant"
_NOTE_DROPPED = "turn: id, disposition: disposition, detail: detail, into: into_turn"
_NOTE_SUSPENDED = "suspension: id, run: run_id, call: call_id, tool: tool, why: why"
_NOTE_DECIDED = "decision: id, run: run_id, call: call_id, suspension: suspension_id, action: action"
_OF_DECISION = "(SELECT thread_id FROM suspensions WHERE suspensions.id = NEW.suspension_id)"

# Name, event and condition of each trigger; of each note kind, body, time, thread and condition.
_TRIGGERS = (
    ("note_arrival", "AFTER INSERT ON turns", "NEW.arrival IS NOT NULL", (
        ("TurnQueued", _NOTE_QUEUED, "queued_at", "NEW.thread_id", "1 = 1"),
        ("TurnDropped", _NOTE_DROPPED, "done_at", "NEW.thread_id", _WITHOUT_RUN),
    )),
    ("note_drop", "AFTER UPDATE OF status ON turns", f"OLD.status <> 'done' AND {_WITHOUT_RUN}", (
        ("TurnDropped", _NOTE_DROPPED, "done_at", "NEW.thread_id", "1 = 1"),
    )),
    ("note_suspension", "AFTER INSERT ON suspensions", "NEW.why <> 'child'", (
        ("CallSuspended", _NOTE_SUSPENDED, "created_at", "NEW.thread_id", "1 = 1"),
    )),
    ("note_decision", "AFTER INSERT ON decisions", "NEW.id IS NOT NULL", (
        ("CallDecided", _NOTE_DECIDED, "created_at", _OF_DECISION, "1 = 1"),
    )),
)  # fmt: skip


def trigger_statements(dialect: str) -> list[str]:
    json_object = "json_build_object" if dialect == "postgresql" else "json_object"
    statements: list[str] = []
    for name, event_of, condition, notes in _TRIGGERS:
        body = " ".join(_note_sql(json_object, *note) for note in notes)
        if dialect == "postgresql":
            # In the schema of our tables, whatever the search path of the session that writes the row.
            function = f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS"
            statements.append(f"{function} $$ BEGIN {body} RETURN NULL; END $$")
            body, row = f"EXECUTE FUNCTION {name}()", f"FOR EACH ROW WHEN ({condition})"
        else:
            body, row = f"BEGIN {body} END", f"FOR EACH ROW WHEN {condition}"
        statements.append(f"CREATE TRIGGER {name} {event_of} {row} {body}")
    return statements


def _note_sql(json_object: str, kind: str, body: str, at: str, thread: str, condition: str) -> str:
    pairs = (pair.split(": ") for pair in body.split(", "))
    fields = ", ".join(f"'{key}', NEW.{column}" for key, column in pairs)
    columns = "thread_id, run_id, step, kind, body, at"
    return (
        f"INSERT INTO journal ({columns}) SELECT {thread}, NEW.id, 0, '{kind}', {json_object}({fields}), NEW.{at} "
        f"WHERE {condition};"
    )


for _dialect in ("sqlite", "postgresql"):
    for _sql in trigger_statements(_dialect):
        event.listen(metadata, "after_create", DDL(_sql.replace("%", "%%")).execute_if(dialect=_dialect))  # type: ignore[no-untyped-call]  # has no types
