"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


MOMENT = sa.DateTime(timezone=True)
JSON = sa.JSON(none_as_null=True)
ID = sa.String(length=200)
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _kin() -> list[sa.Column[Any]]:
    ids = [sa.Column(name, ID) for name in ("parent_run", "parent_call", "root_run")]
    return [
        *ids,
        sa.Column("root_thread", sa.String(length=300)),
        sa.Column("path", sa.Text()),
        sa.Column("max_depth", sa.Integer()),
    ]


def _limits() -> list[sa.Column[Any]]:
    return [sa.Column("max_rounds", sa.Integer()), sa.Column("timeout_ms", sa.BigInteger())]


def _index_same_work() -> None:
    keyed = sa.text("status = 'queued' AND coalesce_key IS NOT NULL")
    open_will = sa.text("origin = 'will' AND status IN ('active', 'queued')")
    op.create_index(
        "uq_turns_coalesce",
        "turns",
        ["agent", "grp", "coalesce_key"],
        unique=True,
        sqlite_where=keyed,
        postgresql_where=keyed,
    )
    op.create_index(
        "uq_turns_will", "turns", ["origin", "agent"], unique=True, sqlite_where=open_will, postgresql_where=open_will
    )


def upgrade() -> None:
    _pulse()
    _replays()
    op.create_table(
        "calls",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("ask_id", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("arguments", JSON, nullable=False),
        sa.Column("effect", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("code", sa.String(length=100), nullable=True),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("full_result", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("claim_token", sa.String(length=100), nullable=True),
        sa.Column("worker", sa.String(length=200), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("resends", sa.Integer(), nullable=False),
        sa.Column("expiries", sa.Integer(), nullable=False),
        sa.Column("suspension_id", sa.String(length=200), nullable=True),
        sa.Column("replayed_at", sa.Integer(), nullable=True),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.CheckConstraint(
            "(status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
            name=op.f("ck_calls_ended_has_time"),
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'failed', 'new', 'resuming', 'running', 'succeeded', 'suspended')",
            name=op.f("ck_calls_status"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calls")),
        sa.UniqueConstraint("run_id", "ask_id", "generation", name=op.f("uq_calls_run_id_ask_id_generation")),
        sa.UniqueConstraint(
            "run_id", "step", "place", "generation", name=op.f("uq_calls_run_id_step_place_generation")
        ),
    )
    with op.batch_alter_table("calls", schema=None) as batch_op:
        batch_op.create_index(
            "ix_calls_lease",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("status IN ('new', 'resuming', 'running')"),
            postgresql_where=sa.text("status IN ('new', 'resuming', 'running')"),
        )

    op.create_table(
        "groups",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("budget", sa.Integer(), nullable=True),
        sa.Column("served", sa.String(length=200), nullable=True),
        sa.Column("hand_on", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_groups")),
        sa.CheckConstraint("budget >= 0", name=op.f("ck_groups_budget_is_no_debt")),
    )
    op.create_table(
        "journal",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("upto", SERIAL, nullable=True),
        sa.CheckConstraint(
            "(kind = 'HistoryCompacted') = (upto IS NOT NULL)", name=op.f("ck_journal_summary_says_upto")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_journal")),
        sa.UniqueConstraint("run_id", "step", "kind", name=op.f("uq_journal_run_id_step_kind")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("journal", schema=None) as batch_op:
        batch_op.create_index(
            "ix_journal_rolled_back",
            ["thread_id", "kind", "run_id"],
            unique=False,
            sqlite_where=sa.text("kind = 'RolledBack'"),
            postgresql_where=sa.text("kind = 'RolledBack'"),
        )
        batch_op.create_index("ix_journal_thread", ["thread_id", "id"], unique=False)
        batch_op.create_index(
            "ix_journal_upto",
            ["thread_id", "upto"],
            unique=False,
            sqlite_where=sa.text("upto IS NOT NULL"),
            postgresql_where=sa.text("upto IS NOT NULL"),
        )

    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("turn_id", sa.String(length=200), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("grp", sa.String(length=20), nullable=False),
        sa.Column("strategy", sa.String(length=50), nullable=False),
        sa.Column("control", sa.String(length=10), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=30), nullable=True),
        sa.Column("code", sa.String(length=100), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=20), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("resends", sa.Integer(), nullable=False),
        sa.Column("expiries", sa.Integer(), nullable=False),
        sa.Column("claim_token", sa.String(length=100), nullable=True),
        sa.Column("claim_worker", sa.String(length=200), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), nullable=False),
        sa.Column("suspended", sa.Integer(), nullable=False),
        sa.Column("rested_ms", sa.Integer(), nullable=False),
        sa.Column("rested_since", MOMENT, nullable=True),
        sa.Column("replay_from", sa.Integer(), nullable=True),
        *_kin(),
        *_limits(),
        sa.Column("children", sa.Integer(), nullable=False),
        sa.Column("steers", sa.Integer(), nullable=False),
        sa.Column("stalled", sa.Integer(), server_default="0", nullable=False),
        sa.Column("kept_reason", sa.String(length=30), nullable=True),
        sa.Column("kept_code", sa.String(length=100), nullable=True),
        sa.Column("kept_detail", sa.Text(), nullable=True),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.CheckConstraint("(status = 'done') = (ended_at IS NOT NULL)", name=op.f("ck_runs_done_has_time")),
        sa.CheckConstraint("epoch >= 1", name=op.f("ck_runs_has_epoch")),
        sa.CheckConstraint("(status = 'running') = (reason IS NULL)", name=op.f("ck_runs_reason_unless_running")),
        sa.CheckConstraint("stalled = 0 OR (stalled = 1 AND status = 'running')", name=op.f("ck_runs_stalls_at_work")),
        sa.CheckConstraint("status IN ('done', 'running', 'waiting')", name=op.f("ck_runs_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    with op.batch_alter_table("runs", schema=None) as batch_op:
        batch_op.create_index(
            "ix_runs_lease",
            ["lease_until"],
            unique=False,
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )
        batch_op.create_index(
            "ix_runs_running",
            ["grp"],
            unique=False,
            sqlite_where=sa.text("status = 'running' AND stalled = 0"),
            postgresql_where=sa.text("status = 'running' AND stalled = 0"),
        )
        batch_op.create_index(
            "uq_runs_open_thread",
            ["thread_id"],
            unique=True,
            sqlite_where=sa.text("status IN ('running', 'waiting')"),
            postgresql_where=sa.text("status IN ('running', 'waiting')"),
        )

    op.create_table(
        "suspensions",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("tool", sa.String(length=200), nullable=False),
        sa.Column("why", sa.String(length=30), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("schema", JSON, nullable=True),
        sa.Column("resume_mode", sa.String(length=40), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("on_expiry", sa.String(length=20), nullable=False),
        sa.Column("default", JSON, nullable=True),
        sa.Column("escalated_at", MOMENT, nullable=True),
        sa.Column("about_claim", sa.String(length=100), nullable=True),
        sa.CheckConstraint(
            "status IN ('decided', 'open', 'settled', 'superseded')", name=op.f("ck_suspensions_status")
        ),
        sa.CheckConstraint(
            "about_claim IS NULL OR why = 'outcome_unknown'", name=op.f("ck_suspensions_only_of_the_unknown")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suspensions")),
    )
    with op.batch_alter_table("suspensions", schema=None) as batch_op:
        unsettled = sa.text("status IN ('decided', 'open')")
        asked = sa.text("status = 'open' AND why <> 'child'")
        may_expire = sa.text("status = 'open' AND expires_at IS NOT NULL AND escalated_at IS NULL")
        for name, columns, where in (
            ("ix_suspensions_run", ["run_id"], None),
            ("ix_suspensions_inbox", ["created_at", "id"], asked),
            ("ix_suspensions_expiry", ["expires_at"], may_expire),
        ):
            batch_op.create_index(name, columns, unique=False, sqlite_where=where, postgresql_where=where)
        batch_op.create_index(
            "uq_suspensions_call", ["call_id"], unique=True, sqlite_where=unsettled, postgresql_where=unsettled
        )

    op.create_table(
        "decisions",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("suspension_id", sa.String(length=200), nullable=False),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=True),
        sa.Column("action", sa.String(length=20), nullable=False),
        sa.Column("payload", JSON, nullable=True),
        sa.Column("edited_args", JSON, nullable=True),
        sa.Column("edited_digest", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("applied_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["suspension_id"], ["suspensions.id"], name=op.f("fk_decisions_suspension_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("suspension_id", name=op.f("uq_decisions_suspension_id")),
    )
    op.create_index("ix_decisions_call", "decisions", ["call_id"])
    op.create_table(
        "plugin_state",
        sa.Column("scope", sa.String(length=20), nullable=False),
        sa.Column("owner", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("value", JSON, nullable=True),
        sa.Column("run_id", sa.String(length=200), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("writer", sa.String(length=200), nullable=True),
        sa.Column("merge", sa.String(length=20), nullable=True),
        sa.PrimaryKeyConstraint("scope", "owner", "key", name=op.f("pk_plugin_state")),
    )
    op.create_table(
        "stepped",
        sa.Column("turn_id", sa.String(length=200), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("drive", sa.String(length=10), nullable=False),
        sa.Column("going", sa.Integer(), nullable=False),
        sa.Column("mutated", sa.Integer(), nullable=False),
        sa.Column("parked", sa.Integer(), nullable=False),
        sa.Column("reply_step", sa.Integer(), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("max_iterations", sa.Integer(), nullable=True),
        sa.Column("cap_policy", sa.String(length=20), nullable=False),
        sa.Column("hold_seconds", sa.Float(), nullable=True),
        sa.Column("on_held", sa.String(length=20), nullable=False),
        sa.Column("held_until", MOMENT, nullable=True),
        sa.Column("params", JSON, nullable=False),
        sa.Column("options", JSON, nullable=False),
        sa.Column("given", JSON, nullable=False),
        sa.Column("replaces", sa.Integer(), nullable=False),
        sa.Column("steers", JSON, nullable=False),
        sa.Column("verdicts", JSON, nullable=False),
        sa.Column("withheld", JSON, nullable=False),
        sa.Column("sent_hash", sa.String(length=64), nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.Column("compacts", sa.Integer(), nullable=True),
        sa.Column("plan", JSON, nullable=True),
        sa.CheckConstraint(
            "max_iterations IS NULL OR max_iterations >= 1", name=op.f("ck_stepped_at_least_one_iteration")
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_stepped")),
    )
    held_too_long = sa.text("held_until IS NOT NULL")
    op.create_index(
        "ix_stepped_held_until",
        "stepped",
        ["held_until"],
        sqlite_where=held_too_long,
        postgresql_where=held_too_long,
    )
    op.create_table(
        "ops",
        sa.Column("turn_id", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("response", JSON, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "key", name=op.f("pk_ops")),
    )
    op.create_table(
        "threads",
        sa.Column("id", sa.String(length=300), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("arrivals", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("compact_asked", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threads")),
    )
    op.create_index("ix_threads_recent", "threads", ["updated_at", "id"])
    op.create_table(
        "turns",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("arrival", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("grp", sa.String(length=20), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("ready", sa.Integer(), nullable=False),
        sa.Column("steers", sa.Integer(), nullable=False),
        sa.Column("disposition", sa.String(length=20), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=200), nullable=True),
        sa.Column("origin", sa.String(length=20), nullable=False),
        sa.Column("channel", sa.String(length=200), nullable=True),
        sa.Column("sender", sa.String(length=20), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("meta", JSON, nullable=False),
        sa.Column("strategy", sa.String(length=50), nullable=False),
        sa.Column("control", sa.String(length=10), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("space", sa.String(length=100), nullable=True),
        sa.Column("dedupe_key", sa.String(length=200), nullable=True),
        sa.Column("coalesce_key", sa.String(length=300), nullable=True),
        sa.Column("into_turn", ID, nullable=True),
        *_limits(),
        sa.Column("reply_target", JSON, nullable=True),
        sa.Column("not_before", MOMENT, nullable=True),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("deadline", MOMENT, nullable=True),
        sa.Column("nudge_at", MOMENT, nullable=False),
        *_kin(),
        sa.Column("cancel_asked", sa.Integer(), nullable=True),
        sa.Column("queued_at", MOMENT, nullable=False),
        sa.Column("started_at", MOMENT, nullable=True),
        sa.Column("done_at", MOMENT, nullable=True),
        sa.CheckConstraint("(status = 'done') = (disposition IS NOT NULL)", name=op.f("ck_turns_done_has_disposition")),
        sa.CheckConstraint("(status = 'done') = (done_at IS NOT NULL)", name=op.f("ck_turns_done_has_time")),
        sa.CheckConstraint("status IN ('active', 'done', 'queued')", name=op.f("ck_turns_status")),
        sa.CheckConstraint(
            "(coalesce(disposition, '') = 'merged') = (into_turn IS NOT NULL)", name=op.f("ck_turns_merged_says_into")
        ),
        sa.CheckConstraint("arrival >= 0 AND rank >= -1", name=op.f("ck_turns_stands_in_line_and_queue")),
        sa.CheckConstraint(
            "space IS NULL OR substr(thread_id, 1, length(space) + 1) = space || ':'",
            name=op.f("ck_turns_in_its_space"),
        ),
        sa.ForeignKeyConstraint(["thread_id"], ["threads.id"], name=op.f("fk_turns_thread_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint("thread_id", "arrival", name=op.f("uq_turns_thread_id_arrival")),
    )
    with op.batch_alter_table("turns", schema=None) as batch_op:
        is_child = sa.text("parent_call IS NOT NULL")
        unwanted = sa.text("cancel_asked = 1 AND status <> 'done'")
        for name, columns, where, unique in (
            ("uq_turns_child", ["parent_call"], is_child, True),
            ("ix_turns_children", ["parent_run"], sa.text("parent_run IS NOT NULL"), False),
            ("ix_turns_unwanted", ["id"], unwanted, False),
        ):
            batch_op.create_index(name, columns, unique=unique, sqlite_where=where, postgresql_where=where)
        batch_op.create_index(
            "ix_turns_behind",
            ["nudge_at"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND ready = 0"),
            postgresql_where=sa.text("status = 'queued' AND ready = 0"),
        )
        batch_op.create_index(
            "ix_turns_deadline",
            ["deadline"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND deadline IS NOT NULL"),
            postgresql_where=sa.text("status = 'queued' AND deadline IS NOT NULL"),
        )
        batch_op.create_index(
            "ix_turns_line",
            ["thread_id", "rank", "arrival"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND rank >= -1"),
            postgresql_where=sa.text("status = 'queued' AND rank >= -1"),
        )
        batch_op.create_index(
            "ix_turns_ready",
            ["grp", "tenant", "due_at", "id"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND ready = 1"),
            postgresql_where=sa.text("status = 'queued' AND ready = 1"),
        )
        batch_op.create_index(
            "ix_turns_asleep",
            ["due_at"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND ready = 2"),
            postgresql_where=sa.text("status = 'queued' AND ready = 2"),
        )
        batch_op.create_index(
            "ix_turns_queue",
            ["grp", "queued_at", "id"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND arrival >= 0"),
            postgresql_where=sa.text("status = 'queued' AND arrival >= 0"),
        )
        batch_op.create_index(
            "ix_turns_steering",
            ["thread_id", "arrival"],
            unique=False,
            sqlite_where=sa.text("status = 'queued' AND steers = 1"),
            postgresql_where=sa.text("status = 'queued' AND steers = 1"),
        )
        batch_op.create_index(
            "uq_turns_dedupe",
            ["agent", "source", "dedupe_key"],
            unique=True,
            sqlite_where=sa.text("dedupe_key IS NOT NULL"),
            postgresql_where=sa.text("dedupe_key IS NOT NULL"),
        )
    _index_same_work()
    groups = sa.table("groups", sa.column("name", sa.String))
    op.bulk_insert(groups, [{"name": name} for name in ("chat", "task", "chore", "will")])
    _polls()
    _bus_and_deliveries()


def _pulse() -> None:
    op.create_table(
        "pulse",
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("key", ID, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("paused", sa.Integer(), nullable=False),
        sa.Column("seen", sa.String(length=64)),
        sa.Column("own", sa.String(length=64)),
        sa.Column("schedule", sa.Text()),
        *(sa.Column(name, MOMENT) for name in ("anchor", "next_due", "last_slot")),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("turn_id", ID),
        sa.Column("open", sa.Integer(), nullable=False),
        *(sa.Column(name, MOMENT) for name in ("started_at", "ended_at")),
        sa.Column("disposition", sa.String(length=20)),
        sa.Column("run_id", ID),
        sa.Column("gone_at", MOMENT),
        sa.CheckConstraint("kind IN ('chore', 'task', 'will')", name=op.f("ck_pulse_kind")),
        sa.CheckConstraint("state IN ('done', 'gone', 'live')", name=op.f("ck_pulse_state")),
        sa.CheckConstraint("open = 0 OR turn_id IS NOT NULL", name=op.f("ck_pulse_open_has_turn")),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("pk_pulse")),
    )
    for name, column, where in (
        ("ix_pulse_due", "next_due", "state = 'live' AND paused = 0 AND open = 0"),
        ("ix_pulse_open", "turn_id", "open = 1"),
        ("ix_pulse_gone", "gone_at", "state = 'gone'"),
    ):
        op.create_index(name, "pulse", [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _replays() -> None:
    op.create_table(
        "replays",
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=100), nullable=False),
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("until", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("source", "digest", name=op.f("pk_replays")),
    )
    op.create_index("ix_replays_until", "replays", ["until"])


def _polls() -> None:
    counts = ("failures", "taken", "doubled", "refused", "passed_over")
    op.create_table(
        "polls",
        sa.Column("name", ID, nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=200), nullable=True),
        *(sa.Column(name, MOMENT, nullable=True) for name in ("lease_until", "looked_at", "stored_at")),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("next_look", MOMENT, nullable=True),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in counts),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_polls")),
    )
    op.create_table(
        "refusals",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("excerpt", sa.Text(), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusals")),
        sa.UniqueConstraint("source", "key", name=op.f("uq_refusals_source_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("refusals", schema=None) as batch_op:
        batch_op.create_index("ix_refusals_recent", ["source", "id"], unique=False)


def _bus_and_deliveries() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("thread_id", sa.String(length=300), nullable=False),
        sa.Column("turn_id", sa.String(length=200), nullable=False),
        sa.Column("target", JSON, nullable=False),
        sa.Column("receiver", sa.String(length=300), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("position", SERIAL, nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("forgiven", sa.Integer(), nullable=False),
        sa.Column("next_at", MOMENT, nullable=False),
        sa.Column("claim_token", sa.String(length=100), nullable=True),
        sa.Column("claim_worker", sa.String(length=200), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("sent_at", MOMENT, nullable=True),
        sa.Column("dead_at", MOMENT, nullable=True),
        sa.CheckConstraint("status IN ('dead', 'pending', 'sent')", name=op.f("ck_outbox_status")),
        sa.CheckConstraint("(status = 'sent') = (sent_at IS NOT NULL)", name=op.f("ck_outbox_sent_has_time")),
        sa.CheckConstraint("(status = 'dead') = (dead_at IS NOT NULL)", name=op.f("ck_outbox_dead_has_time")),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_outbox_stands_in_line")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("turn_id", name=op.f("uq_outbox_turn_id")),
        sqlite_autoincrement=True,
    )
    pending = sa.text("status = 'pending'")
    in_hand = sa.text("status = 'pending' AND claim_token IS NOT NULL")
    for name, columns, where in (
        ("ix_outbox_due", ["receiver", "next_at", "id"], pending),
        ("ix_outbox_line", ["thread_id", "id"], sa.text("status = 'pending' AND attempts >= 0")),
        ("ix_outbox_in_hand", ["receiver"], in_hand),
        ("ix_outbox_dead", ["id"], sa.text("status = 'dead'")),
    ):
        op.create_index(name, "outbox", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "projection",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("bus", sa.String(length=200), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("position", SERIAL, nullable=False),
        sa.Column("moved_at", MOMENT, nullable=True),
        sa.Column("claim_token", sa.String(length=100), nullable=True),
        sa.Column("claim_worker", sa.String(length=200), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projection")),
    )
    for statement in NOTES[op.get_bind().dialect.name]:
        op.execute(statement)


# Kept in step with store/schema.py; a test compares what both make.
NOTES = {
    "sqlite": (
        (
            "CREATE TRIGGER note_arrival AFTER INSERT ON turns FOR EACH ROW WHEN NEW.arrival IS NOT NULL "
            "BEGIN INSERT INTO journal (thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, "
            "NEW.id, 0, 'TurnQueued', json_object('turn', NEW.id, 'agent', NEW.agent, 'group', NEW.grp, "
            "'origin', NEW.origin, 'tenant', NEW.tenant), NEW.queued_at WHERE 1 = 1; INSERT INTO journal "
            "(thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, NEW.id, 0, 'TurnDropped', "
            "json_object('turn', NEW.id, 'disposition', NEW.disposition, 'detail', NEW.detail, 'into', "
            "NEW.into_turn), NEW.done_at WHERE NEW.status = 'done' AND NEW.run_id IS NULL; END"
        ),
        (
            "CREATE TRIGGER note_drop AFTER UPDATE OF status ON turns FOR EACH ROW WHEN OLD.status <> 'done' "
            "AND NEW.status = 'done' AND NEW.run_id IS NULL BEGIN INSERT INTO journal (thread_id, run_id, "
            "step, kind, body, at) SELECT NEW.thread_id, NEW.id, 0, 'TurnDropped', json_object('turn', "
            "NEW.id, 'disposition', NEW.disposition, 'detail', NEW.detail, 'into', NEW.into_turn), "
            "NEW.done_at WHERE 1 = 1; END"
        ),
        (
            "CREATE TRIGGER note_suspension AFTER INSERT ON suspensions FOR EACH ROW WHEN NEW.why <> 'child' "
            "BEGIN INSERT INTO journal (thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, "
            "NEW.id, 0, 'CallSuspended', json_object('suspension', NEW.id, 'run', NEW.run_id, 'call', "
            "NEW.call_id, 'tool', NEW.tool, 'why', NEW.why), NEW.created_at WHERE 1 = 1; END"
        ),
        (
            "CREATE TRIGGER note_decision AFTER INSERT ON decisions FOR EACH ROW WHEN NEW.id IS NOT NULL "
            "BEGIN INSERT INTO journal (thread_id, run_id, step, kind, body, at) SELECT (SELECT thread_id "
            "FROM suspensions WHERE suspensions.id = NEW.suspension_id), NEW.id, 0, 'CallDecided', "
            "json_object('decision', NEW.id, 'run', NEW.run_id, 'call', NEW.call_id, 'suspension', "
            "NEW.suspension_id, 'action', NEW.action), NEW.created_at WHERE 1 = 1; END"
        ),
    ),
    "postgresql": (
        (
            "CREATE FUNCTION note_arrival() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            "BEGIN INSERT INTO journal "
            "(thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, NEW.id, 0, 'TurnQueued', "
            "json_build_object('turn', NEW.id, 'agent', NEW.agent, 'group', NEW.grp, 'origin', NEW.origin, "
            "'tenant', NEW.tenant), NEW.queued_at WHERE 1 = 1; INSERT INTO journal (thread_id, run_id, step, "
            "kind, body, at) SELECT NEW.thread_id, NEW.id, 0, 'TurnDropped', json_build_object('turn', "
            "NEW.id, 'disposition', NEW.disposition, 'detail', NEW.detail, 'into', NEW.into_turn), "
            "NEW.done_at WHERE NEW.status = 'done' AND NEW.run_id IS NULL; RETURN NULL; END $$"
        ),
        (
            "CREATE TRIGGER note_arrival AFTER INSERT ON turns FOR EACH ROW WHEN (NEW.arrival IS NOT NULL) "
            "EXECUTE FUNCTION note_arrival()"
        ),
        (
            "CREATE FUNCTION note_drop() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            "BEGIN INSERT INTO journal "
            "(thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, NEW.id, 0, 'TurnDropped', "
            "json_build_object('turn', NEW.id, 'disposition', NEW.disposition, 'detail', NEW.detail, "
            "'into', NEW.into_turn), NEW.done_at WHERE 1 = 1; RETURN NULL; END $$"
        ),
        (
            "CREATE TRIGGER note_drop AFTER UPDATE OF status ON turns FOR EACH ROW WHEN (OLD.status <> "
            "'done' AND NEW.status = 'done' AND NEW.run_id IS NULL) EXECUTE FUNCTION note_drop()"
        ),
        (
            "CREATE FUNCTION note_suspension() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            "BEGIN INSERT INTO "
            "journal (thread_id, run_id, step, kind, body, at) SELECT NEW.thread_id, NEW.id, 0, "
            "'CallSuspended', json_build_object('suspension', NEW.id, 'run', NEW.run_id, 'call', "
            "NEW.call_id, 'tool', NEW.tool, 'why', NEW.why), NEW.created_at WHERE 1 = 1; RETURN NULL; END $$"
        ),
        (
            "CREATE TRIGGER note_suspension AFTER INSERT ON suspensions FOR EACH ROW WHEN (NEW.why <> "
            "'child') EXECUTE FUNCTION note_suspension()"
        ),
        (
            "CREATE FUNCTION note_decision() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ "
            "BEGIN INSERT INTO "
            "journal (thread_id, run_id, step, kind, body, at) SELECT (SELECT thread_id FROM suspensions "
            "WHERE suspensions.id = NEW.suspension_id), NEW.id, 0, 'CallDecided', "
            "json_build_object('decision', NEW.id, 'run', NEW.run_id, 'call', NEW.call_id, 'suspension', "
            "NEW.suspension_id, 'action', NEW.action), NEW.created_at WHERE 1 = 1; RETURN NULL; END $$"
        ),
        (
            "CREATE TRIGGER note_decision AFTER INSERT ON decisions FOR EACH ROW WHEN (NEW.id IS NOT NULL) "
            "EXECUTE FUNCTION note_decision()"
        ),
    ),
}
