"""The tables. What must never be stored is a constraint here, not an `if` elsewhere.

One schema for SQLite and PostgreSQL. Rows that are only ever written in the transaction that made or locked what they
point to have no foreign key: the check would lock that row a second time, and write to it, for every step of every
turn. The invariants that carry the product are unique indexes: one open run per thread, one turn per dedupe key, one
open question per call, and one answer per question.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from chordage.orchestrator.core.delivering import DeliveryStatus
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import IN_FLIGHT_CALL, OPEN_RUN, CallStatus, RunStatus, TurnStatus
from chordage.orchestrator.core.suspending import SuspensionStatus
from chordage.orchestrator.store.types import Json, Moment, Serial

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _among(column: str, values: Iterable[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in sorted(values))
    return f"{column} IN ({listed})"


UNSETTLED = frozenset({SuspensionStatus.OPEN, SuspensionStatus.DECIDED})

Id = String(200)
Placed = String(300)  # a name, and the space that it lies in before it: core/spaces.py


def _kin() -> list[Column[Any]]:
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
    Column("served", String(200)),  # the tenant whose turn it was last: store/ring.py
    # 1: a ready turn has found no free place, so each run that frees one sends for the next: store/claim_places.py
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
    *_kin(),
    Column("cancel_asked", Integer),  # 1: a child that nobody waits for any more
    Column("queued_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("done_at", Moment),
    UniqueConstraint("thread_id", "arrival"),
    CheckConstraint(_among("status", TurnStatus), name="status"),
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
    *_kin(),
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
    CheckConstraint(_among("status", RunStatus), name="status"),
    CheckConstraint("(status = 'running') = (reason IS NULL)", name="reason_unless_running"),
    CheckConstraint("(status = 'done') = (ended_at IS NOT NULL)", name="done_has_time"),
    CheckConstraint("epoch >= 1", name="has_epoch"),
    CheckConstraint("stalled = 0 OR (stalled = 1 AND status = 'running')", name="stalls_at_work"),
)
_OPEN = text(_among("status", OPEN_RUN))
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
    CheckConstraint(_among("status", CallStatus), name="status"),
    CheckConstraint(
        "(status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
        name="ended_has_time",
    ),
)
_FLYING = text(_among("status", IN_FLIGHT_CALL))
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
    CheckConstraint(_among("status", SuspensionStatus), name="status"),
    CheckConstraint("about_claim IS NULL OR why = 'outcome_unknown'", name="only_of_the_unknown"),
)
_UNSETTLED = text(_among("status", UNSETTLED))
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
    CheckConstraint(_among("status", DeliveryStatus), name="status"),
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
