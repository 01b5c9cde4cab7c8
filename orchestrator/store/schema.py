"""Column types that read the same from SQLite and PostgreSQL.

The tables. What must never be stored is a constraint here, not an `if` elsewhere.

One schema for SQLite and PostgreSQL. Rows that are only ever written in the transaction that made or locked what they
point to have no foreign key: the check would lock that row a second time, and write to it, for every step of every
turn. The invariants that carry the product are unique indexes: one open run per thread, one turn per dedupe key, one
open question per call, and one answer per question.

The tables of polled channels: where each binding stands, and the messages of theirs that became no turn.

The table of the pulse: what is known of each task, chore and will. Its row is locked before any other.

The table of signed bytes that were taken: by it a copy under another id is known again.

Notes in the journal that the database writes by itself: a turn was queued, or ended without a run; a call was put
aside; somebody decided.

They stand in the journal so that one order, one cursor and one position hold for all that the fleet is told. A trigger
costs no statement, and nobody who ends a turn in the queue, now or later, can forget it.
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
    text,
)
from sqlalchemy.types import TypeDecorator

from chordage.orchestrator.core.delivering import DeliveryStatus
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_RUN, CallStatus, RunStatus, TurnStatus
from chordage.orchestrator.core.suspending import SuspensionStatus


class Moment(TypeDecorator[datetime]):
    """A UTC time. SQLite forgets the zone on the way in; it is put back on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is not None and value.tzinfo is None:
            raise ValueError(f"a time without a zone was to be stored: {value}")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the base class's signature
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# As it was written, on both databases: PostgreSQL's jsonb would sort the keys. No statement looks inside.
Json = JSON(none_as_null=True)

# SQLite numbers rows by itself only where the key is a plain INTEGER.
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


UNSETTLED = frozenset({SuspensionStatus.OPEN, SuspensionStatus.DECIDED})

Id = String(200)
Placed = String(300)  # a name, and the space that it lies in before it: core/spaces.py


def _ancestry() -> list[Column[Any]]:
    """Of a child, where it stands in its tree: core/kinship.py."""
    return [
        Column("parent_run", Id),
        Column("parent_call", Id),
        Column("root_run", Id),
        Column("root_thread", Placed),
        Column("path", Text),
        Column("max_depth", Integer),
    ]


groups = Table(
    "groups",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("budget", Integer),  # null: the setting decides
    Column("served", String(200)),  # the tenant whose turn it was last: store/fairness.py
    # 1: a ready turn has found no free place, so each run that frees one sends for the next: store/groups.py
    Column("hand_on", Integer, nullable=False, server_default="0"),
    CheckConstraint("budget >= 0", name="budget_is_no_debt"),
)

threads = Table(
    "threads",
    metadata,
    Column("id", Placed, primary_key=True),
    Column("agent", String(200), nullable=False),
    Column("arrivals", Integer, nullable=False),  # how many turns have arrived: numbers the next one
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("compact_asked", Integer),  # how often somebody has asked for a summary; null: never
)

Index("ix_threads_recent", threads.c.updated_at, threads.c.id)

turns = Table(
    "turns",
    metadata,
    Column("id", Id, primary_key=True),
    Column("thread_id", Placed, ForeignKey("threads.id"), nullable=False),
    Column("arrival", Integer, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("grp", String(20), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("tenant", String(200), nullable=False),
    Column("status", String(20), nullable=False),
    # 1: the next of its thread to start, and nothing on the thread is open. 2: the same, and it sleeps until its
    # not_before. Set by whoever makes it true.
    Column("ready", Integer, nullable=False),
    Column(
        "steers", Integer, nullable=False
    ),  # 1: a run of its thread may take it in, if it is at work before this starts
    Column("disposition", String(20)),
    Column("detail", Text),  # why a turn ended that never started; of others the run tells
    Column("run_id", Id),
    Column("origin", String(20), nullable=False),
    Column("channel", String(200)),
    Column("sender", String(20), nullable=False),
    Column("text", Text, nullable=False),
    Column("meta", Json, nullable=False),
    Column("strategy", String(50), nullable=False),
    Column("control", String(10), nullable=False),
    Column("source", String(200), nullable=False),
    Column("space", String(100)),  # of the caller that sent it; null: a way in that is the operator's or the room's
    Column("dedupe_key", String(200)),
    Column("coalesce_key", Placed),
    Column("into_turn", Id),  # of one that ended merged
    Column("max_rounds", Integer),  # its own limits; null: its agent's alone
    Column("timeout_ms", BigInteger),
    Column("reply_target", Json),
    Column("not_before", Moment),
    Column("due_at", Moment, nullable=False),
    Column("deadline", Moment),
    Column("nudge_at", Moment, nullable=False),  # when rescue looks at it next
    *_ancestry(),
    Column("cancel_asked", Integer),  # 1: a child that nobody waits for any more
    Column("queued_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("done_at", Moment),
    UniqueConstraint("thread_id", "arrival"),
    CheckConstraint(_one_of("status", TurnStatus), name="status"),
    CheckConstraint("(status = 'done') = (disposition IS NOT NULL)", name="done_has_disposition"),
    CheckConstraint("(status = 'done') = (done_at IS NOT NULL)", name="done_has_time"),
    CheckConstraint("(coalesce(disposition, '') = 'merged') = (into_turn IS NOT NULL)", name="merged_says_into"),
    CheckConstraint("arrival >= 0 AND rank >= -1", name="stands_in_line_and_queue"),
    # What a caller says lies in its own space, whatever the code believes.
    CheckConstraint("space IS NULL OR substr(thread_id, 1, length(space) + 1) = space || ':'", name="in_its_space"),
)
Index(
    "uq_turns_dedupe",
    turns.c.agent,
    turns.c.source,
    turns.c.dedupe_key,
    unique=True,
    sqlite_where=turns.c.dedupe_key.is_not(None),
    postgresql_where=turns.c.dedupe_key.is_not(None),
)
# Of the same work, one turn is queued; and of an agent's will there is one.
_KEYED = text("status = 'queued' AND coalesce_key IS NOT NULL")
Index(
    "uq_turns_coalesce",
    turns.c.agent,
    turns.c.grp,
    turns.c.coalesce_key,
    unique=True,
    sqlite_where=_KEYED,
    postgresql_where=_KEYED,
)
_OPEN_WILL = text("origin = 'will' AND status IN ('active', 'queued')")
Index("uq_turns_will", turns.c.origin, turns.c.agent, unique=True, sqlite_where=_OPEN_WILL, postgresql_where=_OPEN_WILL)
_READY = text("status = 'queued' AND ready = 1")
Index(
    "ix_turns_ready",
    turns.c.grp,
    turns.c.tenant,
    turns.c.due_at,
    turns.c.id,
    sqlite_where=_READY,
    postgresql_where=_READY,
)
_ASLEEP = text("status = 'queued' AND ready = 2")
Index("ix_turns_asleep", turns.c.due_at, sqlite_where=_ASLEEP, postgresql_where=_ASLEEP)
_BEHIND = text("status = 'queued' AND ready = 0")
Index("ix_turns_behind", turns.c.nudge_at, sqlite_where=_BEHIND, postgresql_where=_BEHIND)
# Of those that are queued, the line of a thread and the queue of a group. Each says something that holds of every turn,
# and it alone is said by the statements that are meant to use it: while both are empty they are alike to PostgreSQL, as
# in `still`.
_IN_LINE = text("status = 'queued' AND rank >= -1")
Index(
    "ix_turns_line",
    turns.c.thread_id,
    turns.c.rank,
    turns.c.arrival,
    sqlite_where=_IN_LINE,
    postgresql_where=_IN_LINE,
)
_IN_QUEUE = text("status = 'queued' AND arrival >= 0")
Index("ix_turns_queue", turns.c.grp, turns.c.queued_at, turns.c.id, sqlite_where=_IN_QUEUE, postgresql_where=_IN_QUEUE)
_STEERING = text("status = 'queued' AND steers = 1")
Index(
    "ix_turns_steering",
    turns.c.thread_id,
    turns.c.arrival,
    sqlite_where=_STEERING,
    postgresql_where=_STEERING,
)
_MORTAL = text("status = 'queued' AND deadline IS NOT NULL")
Index("ix_turns_deadline", turns.c.deadline, sqlite_where=_MORTAL, postgresql_where=_MORTAL)

# One child for each call, whatever anybody believed.
_IS_CHILD = text("parent_call IS NOT NULL")
Index("uq_turns_child", turns.c.parent_call, unique=True, sqlite_where=_IS_CHILD, postgresql_where=_IS_CHILD)
_OF_PARENT = text("parent_run IS NOT NULL")
Index("ix_turns_children", turns.c.parent_run, sqlite_where=_OF_PARENT, postgresql_where=_OF_PARENT)
_UNWANTED = text("cancel_asked = 1 AND status <> 'done'")
Index("ix_turns_unwanted", turns.c.id, sqlite_where=_UNWANTED, postgresql_where=_UNWANTED)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("thread_id", Placed, nullable=False),
    Column("turn_id", Id, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("grp", String(20), nullable=False),
    Column("strategy", String(50), nullable=False),
    Column("control", String(10), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(30)),
    Column("code", String(100)),
    Column("detail", Text),
    Column("epoch", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("phase", String(20), nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("resends", Integer, nullable=False),
    Column("expiries", Integer, nullable=False),
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("lease_until", Moment),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("cache_write_tokens", Integer, nullable=False),
    Column("suspended", Integer, nullable=False),  # 1 once a call of it was suspended: then more has to be looked at
    Column("rested_ms", Integer, nullable=False),  # how long it has waited for decisions
    Column("rested_since", Moment),
    Column("replay_from", Integer),  # the lowest step of which calls are carried out again
    *_ancestry(),
    Column("max_rounds", Integer),  # of its turn's own; null: its agent's alone
    Column("timeout_ms", BigInteger),
    Column("children", Integer, nullable=False),  # how many sub-agents it has asked
    Column("steers", Integer, nullable=False),  # 1 while a message waits to be taken in at its next step
    Column("stalled", Integer, nullable=False, server_default="0"),  # 1 while it waits for its agent, without a place
    # What it will end with once nothing is suspended any more.
    Column("kept_reason", String(30)),
    Column("kept_code", String(100)),
    Column("kept_detail", Text),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    CheckConstraint(_one_of("status", RunStatus), name="status"),
    CheckConstraint("(status = 'running') = (reason IS NULL)", name="reason_unless_running"),
    CheckConstraint("(status = 'done') = (ended_at IS NOT NULL)", name="done_has_time"),
    CheckConstraint("epoch >= 1", name="has_epoch"),
    CheckConstraint("stalled = 0 OR (stalled = 1 AND status = 'running')", name="stalls_at_work"),
)
_OPEN = text(_one_of("status", OPEN_RUN))
Index("uq_runs_open_thread", runs.c.thread_id, unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN)
_RUNNING = text("status = 'running'")
_IN_BUDGET = text("status = 'running' AND stalled = 0")
Index("ix_runs_running", runs.c.grp, sqlite_where=_IN_BUDGET, postgresql_where=_IN_BUDGET)
Index("ix_runs_lease", runs.c.lease_until, sqlite_where=_RUNNING, postgresql_where=_RUNNING)

calls = Table(
    "calls",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", Id, nullable=False),
    Column("thread_id", Placed, nullable=False),
    Column("step", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("ask_id", String(200), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("tool", String(200), nullable=False),
    Column("arguments", Json, nullable=False),
    Column("effect", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("code", String(100)),
    Column("content", Text),
    Column("full_result", Text),
    Column("progress", Text),
    Column("claim_token", String(100)),
    Column("worker", String(200)),
    Column("lease_until", Moment),
    Column("resends", Integer, nullable=False),
    Column("expiries", Integer, nullable=False),
    Column("suspension_id", Id),  # the newest there was
    Column("replayed_at", Integer),  # the step at which it was last carried out again
    Column("started_at", Moment),
    Column("ended_at", Moment),
    UniqueConstraint("run_id", "step", "place", "generation"),
    UniqueConstraint("run_id", "ask_id", "generation"),
    CheckConstraint(_one_of("status", CallStatus), name="status"),
    CheckConstraint(
        "(status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
        name="ended_has_time",
    ),
)
_FLYING = text(_one_of("status", IN_FLIGHT_CALL))
Index("ix_calls_lease", calls.c.lease_until, sqlite_where=_FLYING, postgresql_where=_FLYING)

journal = Table(
    "journal",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("thread_id", Placed, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("step", Integer, nullable=False),
    Column("kind", String(30), nullable=False),
    Column("body", Json, nullable=False),
    Column("at", Moment, nullable=False),
    Column("upto", Serial),  # of a summary: the last row that it stands for
    # A checkpoint is written once. This holds even where every guard before it should fail.
    UniqueConstraint("run_id", "step", "kind"),
    CheckConstraint(f"(kind = '{Checkpoint.COMPACTED}') = (upto IS NOT NULL)", name="summary_says_upto"),
    sqlite_autoincrement=True,
)
Index("ix_journal_thread", journal.c.thread_id, journal.c.id)
_ROLLED_BACK = text("kind = 'RolledBack'")
Index(
    "ix_journal_rolled_back",
    journal.c.thread_id,
    journal.c.kind,  # without it SQLite would rather go through all rows of the thread
    journal.c.run_id,
    sqlite_where=_ROLLED_BACK,
    postgresql_where=_ROLLED_BACK,
)
_SUMMARY = text("upto IS NOT NULL")
Index("ix_journal_upto", journal.c.thread_id, journal.c.upto, sqlite_where=_SUMMARY, postgresql_where=_SUMMARY)

suspensions = Table(
    "suspensions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("call_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("thread_id", Placed, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("step", Integer, nullable=False),
    Column("tool", String(200), nullable=False),
    Column("why", String(30), nullable=False),
    Column("prompt", Text, nullable=False),
    Column("schema", Json),
    Column("resume_mode", String(40), nullable=False),
    Column("digest", String(64), nullable=False),  # of the arguments that were asked about
    Column("status", String(20), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("on_expiry", String(20), nullable=False),
    Column("default", Json),
    Column("escalated_at", Moment),
    Column("about_claim", String(100)),  # the claim whose holder may still come with the result
    CheckConstraint(_one_of("status", SuspensionStatus), name="status"),
    CheckConstraint("about_claim IS NULL OR why = 'outcome_unknown'", name="only_of_the_unknown"),
)
_UNSETTLED = text(_one_of("status", UNSETTLED))
# One question at a time for each call.
Index(
    "uq_suspensions_call",
    suspensions.c.call_id,
    unique=True,
    sqlite_where=_UNSETTLED,
    postgresql_where=_UNSETTLED,
)
Index("ix_suspensions_run", suspensions.c.run_id)
_ASKED = text("status = 'open' AND why <> 'child'")
Index(
    "ix_suspensions_inbox",
    suspensions.c.created_at,
    suspensions.c.id,
    sqlite_where=_ASKED,
    postgresql_where=_ASKED,
)
_MAY_EXPIRE = text("status = 'open' AND expires_at IS NOT NULL AND escalated_at IS NULL")
Index(
    "ix_suspensions_expiry",
    suspensions.c.expires_at,
    sqlite_where=_MAY_EXPIRE,
    postgresql_where=_MAY_EXPIRE,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True),
    # One answer for each question, and none that could answer a later one of the same call.
    Column("suspension_id", Id, ForeignKey("suspensions.id"), nullable=False, unique=True),
    Column("call_id", Id, nullable=False),
    Column("run_id", Id, nullable=False),
    Column("key", String(200)),
    Column("action", String(20), nullable=False),
    Column("payload", Json),
    Column("edited_args", Json),
    Column("edited_digest", String(64)),
    Column("reason", Text),
    Column("source", String(200), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("applied_at", Moment),
)
Index("ix_decisions_call", decisions.c.call_id)

# What plugins have noted. Who wrote last, and in which round, tells a conflict of parallel calls from a later change.
plugin_state = Table(
    "plugin_state",
    metadata,
    Column("scope", String(20), primary_key=True),
    Column("owner", Id, primary_key=True),  # the thread, the run or the call
    Column("key", String(200), primary_key=True),
    Column("value", Json),
    Column("run_id", Id),
    Column("step", Integer),
    Column("writer", Id),
    Column("merge", String(20)),
)

# What the consumer of a stepped turn has laid down and said. Locked behind its run.
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
    Column("held_until", Moment),
    Column("params", Json, nullable=False),
    Column("options", Json, nullable=False),
    Column("given", Json, nullable=False),
    Column("replaces", Integer, nullable=False),
    Column("steers", Json, nullable=False),
    Column("verdicts", Json, nullable=False),
    Column("withheld", Json, nullable=False),
    Column("sent_hash", String(64)),
    Column("error", Json),
    Column("compacts", Integer),
    Column("plan", Json),
    CheckConstraint("max_iterations IS NULL OR max_iterations >= 1", name="at_least_one_iteration"),
)
_HELD_TOO_LONG = text("held_until IS NOT NULL")
Index(
    "ix_stepped_held_until",
    stepped.c.held_until,
    sqlite_where=_HELD_TOO_LONG,
    postgresql_where=_HELD_TOO_LONG,
)

# What was done by which idempotency key.
ops = Table(
    "ops",
    metadata,
    Column("turn_id", Id, primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_hash", String(64), nullable=False),
    Column("response", Json, nullable=False),
    Column("at", Moment, nullable=False),
)

# What must leave, one row for each turn that somebody is to be told of.
outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("thread_id", Placed, nullable=False),
    Column("turn_id", Id, nullable=False, unique=True),
    Column("target", Json, nullable=False),
    Column("receiver", String(300), nullable=False),  # who is not to be sent too much at once
    Column("body", Json, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("position", Serial, nullable=False),  # the journal row that has to be on the bus before
    Column("status", String(10), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("forgiven", Integer, nullable=False),  # attempts before somebody had a dead letter sent again
    Column("next_at", Moment, nullable=False),  # when it is looked at next; of one in hand, when its lease runs out
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("error", Text),
    Column("sent_at", Moment),
    Column("dead_at", Moment),
    CheckConstraint(_one_of("status", DeliveryStatus), name="status"),
    CheckConstraint("(status = 'sent') = (sent_at IS NOT NULL)", name="sent_has_time"),
    CheckConstraint("(status = 'dead') = (dead_at IS NOT NULL)", name="dead_has_time"),
    CheckConstraint("attempts >= 0", name="stands_in_line"),
    sqlite_autoincrement=True,
)
_PENDING = text("status = 'pending'")
_PENDING_IN_LINE = text("status = 'pending' AND attempts >= 0")  # something that holds of every one, as of turns
Index(
    "ix_outbox_due",
    outbox.c.receiver,
    outbox.c.next_at,
    outbox.c.id,
    sqlite_where=_PENDING,
    postgresql_where=_PENDING,
)
Index(
    "ix_outbox_line",
    outbox.c.thread_id,
    outbox.c.id,
    sqlite_where=_PENDING_IN_LINE,
    postgresql_where=_PENDING_IN_LINE,
)
_IN_HAND = text("status = 'pending' AND claim_token IS NOT NULL")
Index("ix_outbox_in_hand", outbox.c.receiver, sqlite_where=_IN_HAND, postgresql_where=_IN_HAND)
_DEAD = text("status = 'dead'")
Index("ix_outbox_dead", outbox.c.id, sqlite_where=_DEAD, postgresql_where=_DEAD)

# How far the journal is on the bus, and who copies it there.
projection = Table(
    "projection",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("bus", Id, nullable=False),  # of this database: by it Redis knows whose bus it has
    Column("generation", Integer, nullable=False),  # one more each time the bus is built anew
    Column("position", Serial, nullable=False),
    Column("moved_at", Moment),
    Column("claim_token", String(100)),
    Column("claim_worker", String(200)),
    Column("lease_until", Moment),  # of a claim; without one, not to be tried before
    Column("failures", Integer, nullable=False),
    Column("error", Text),
    Column("error_at", Moment),
)


polls = Table(
    "polls",
    metadata,
    Column("name", String(200), primary_key=True),  # of the binding in channels.toml
    Column("cursor", Text),
    Column("revision", Integer, nullable=False),  # counts what was stored: whoever read an older one stores nothing
    Column("holder", String(200)),  # the process that looks at it
    Column("lease_until", Moment),
    Column("looked_at", Moment),
    Column("stored_at", Moment),
    Column("failures", Integer, nullable=False),  # in a row
    Column("error", Text),
    Column("next_look", Moment),  # not before this, because it failed
    Column("taken", Integer, nullable=False),  # messages that became turns
    Column("doubled", Integer, nullable=False),  # that came again
    Column("refused", Integer, nullable=False),
    Column("passed_over", Integer, nullable=False),  # that are none for us
)

refusals = Table(
    "refusals",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("source", String(200), nullable=False),
    Column("key", String(200), nullable=False),
    Column("why", Text, nullable=False),
    Column("excerpt", Text, nullable=False),
    Column("at", Moment, nullable=False),
    UniqueConstraint("source", "key"),  # refused once, however often it is handed out
    sqlite_autoincrement=True,
)

Index("ix_refusals_recent", refusals.c.source, refusals.c.id)


pulse = Table(
    "pulse",
    metadata,
    Column("kind", String(10), primary_key=True),
    Column("key", Id, primary_key=True),
    Column("path", Text, nullable=False),
    Column("rev", Integer, nullable=False),  # counts the writes: the guard of each
    Column("state", String(10), nullable=False),
    Column("paused", Integer, nullable=False),
    Column("seen", String(64)),  # hash of the text that its newest turn was given
    Column("own", String(64)),  # hash of what the tools of that turn made of it
    Column("schedule", Text),
    Column("anchor", Moment),
    Column("next_due", Moment),
    Column("last_slot", Moment),
    Column("count", Integer, nullable=False),
    Column("turn_id", Id),
    Column("open", Integer, nullable=False),  # 1: the end of that turn was not noted yet
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("disposition", String(20)),
    Column("run_id", Id),
    Column("gone_at", Moment),
    CheckConstraint("kind IN ('chore', 'task', 'will')", name="kind"),
    CheckConstraint("state IN ('done', 'gone', 'live')", name="state"),
    CheckConstraint("open = 0 OR turn_id IS NOT NULL", name="open_has_turn"),
)
_PULSE_DUE = text("state = 'live' AND paused = 0 AND open = 0")
Index("ix_pulse_due", pulse.c.next_due, sqlite_where=_PULSE_DUE, postgresql_where=_PULSE_DUE)
_PULSE_OPEN = text("open = 1")
Index("ix_pulse_open", pulse.c.turn_id, sqlite_where=_PULSE_OPEN, postgresql_where=_PULSE_OPEN)
_PULSE_GONE = text("state = 'gone'")
Index("ix_pulse_gone", pulse.c.gone_at, sqlite_where=_PULSE_GONE, postgresql_where=_PULSE_GONE)


replays = Table(
    "replays",
    metadata,
    Column("source", String(200), primary_key=True),  # as of its turn
    Column("digest", String(100), primary_key=True),  # of what was signed
    Column("turn_id", Id, nullable=False),
    Column("until", Moment, nullable=False),  # from then on the same bytes may be another delivery
)
Index("ix_replays_until", replays.c.until)


_WITHOUT_RUN = "NEW.status = 'done' AND NEW.run_id IS NULL"
_NOTE_QUEUED = "turn: id, agent: agent, group: grp, origin: origin, tenant: tenant"
_NOTE_DROPPED = "turn: id, disposition: disposition, detail: detail, into: into_turn"
_NOTE_SUSPENDED = "suspension: id, run: run_id, call: call_id, tool: tool, why: why"
_NOTE_DECIDED = "decision: id, run: run_id, call: call_id, suspension: suspension_id, action: action"
_OF_DECISION = "(SELECT thread_id FROM suspensions WHERE suspensions.id = NEW.suspension_id)"

# Name, when, whether; then what is noted, each as kind, body, time and thread, in this order.
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
    make = "json_build_object" if dialect == "postgresql" else "json_object"
    made: list[str] = []
    for name, when, whether, notes in _TRIGGERS:
        body = " ".join(_note_sql(make, *note) for note in notes)
        if dialect == "postgresql":
            # Whoever writes the row, and whatever stands in that session's search path.
            called = f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS"
            made.append(f"{called} $$ BEGIN {body} RETURN NULL; END $$")
            body, row = f"EXECUTE FUNCTION {name}()", f"FOR EACH ROW WHEN ({whether})"
        else:
            body, row = f"BEGIN {body} END", f"FOR EACH ROW WHEN {whether}"
        made.append(f"CREATE TRIGGER {name} {when} {row} {body}")
    return made


def _note_sql(make: str, kind: str, body: str, at: str, thread: str, whether: str) -> str:
    pairs = (pair.split(": ") for pair in body.split(", "))
    said = ", ".join(f"'{key}', NEW.{column}" for key, column in pairs)
    columns = "thread_id, run_id, step, kind, body, at"
    return (
        f"INSERT INTO journal ({columns}) SELECT {thread}, NEW.id, 0, '{kind}', {make}({said}), NEW.{at} "
        f"WHERE {whether};"
    )


for _dialect in ("sqlite", "postgresql"):
    for _made in trigger_statements(_dialect):
        event.listen(metadata, "after_create", DDL(_made.replace("%", "%%")).execute_if(dialect=_dialect))  # type: ignore[no-untyped-call]  # has no types
