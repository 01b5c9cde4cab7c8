"""`chordage prune`, as people and programs see it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from chordage.config.settings import load
from chordage.orchestrator import stages
from chordage.orchestrator.store import schema, schema_version
from chordage.tasks.schema import request_from
from chordage.workers import local
from chordage.workers.bootstrap import runtime_from

TIMES = {"journal": ("at",), "turns": ("queued_at", "done_at"), "runs": ("ended_at",), "threads": ("updated_at",)}


@pytest.fixture
def rt(room):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    yield runtime
    runtime.store.close()


@pytest.fixture
def old_turn(rt):
    """Of a hundred days ago."""
    turn_id = stages.admit(rt, request_from({"text": "hello"}, source="test", space=None))[0].turn_id
    local.complete(rt, turn_id, on_wait=lambda turn: None)
    then = rt.now() - timedelta(days=100)
    with rt.store.write() as tx:
        for table, columns in TIMES.items():
            tx.execute(update(schema.metadata.tables[table]).values(dict.fromkeys(columns, then)))
    return turn_id


def turns(rt):
    with rt.store.read() as tx:
        return tx.execute(select(schema.turns.c.id)).scalars().all()


def test_a_dry_run_counts_and_deletes_nothing(chordage, rt, old_turn):
    text = chordage("prune", "--older-than", "90d", "--dry-run").stdout
    report = json.loads(chordage("prune", "--older-than", "12w", "--dry-run", "--json").stdout)

    assert "1 turns that ended before" in text
    assert "would be deleted" in text
    assert (report["deleted"], report["rows"]["turns"], report["rows"]["runs"]) == (False, 1, 1)
    assert turns(rt) == [old_turn]


def test_the_rows_that_were_deleted_are_shown_by_table(chordage, rt, old_turn, monkeypatch):
    monkeypatch.setattr("chordage.workers.cli.prune.EVERY", 0.0)

    result = chordage("prune", "--older-than", "90d", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["rows"] == {"journal": 4, "runs": 1, "threads": 1, "turns": 1}
    assert "1 turns deleted so far" in result.stderr
    assert turns(rt) == []
    assert json.loads(chordage("prune", "--older-than", "90d", "--json").stdout)["rows"] == {}


def test_turns_that_ended_otherwise_are_left(chordage, rt, old_turn):
    chordage("prune", "--older-than", "90d", "--state", "failed", "--state", "expired")

    assert turns(rt) == [old_turn]


def test_an_age_in_settings_is_applied_by_the_sweep(room, rt, old_turn, monkeypatch):
    monkeypatch.setenv("CHORDAGE_TURN_KEEP_DAYS", "90")
    keeping = runtime_from(load(room=room), with_redis=False)

    stages.rescue(keeping)
    keeping.store.close()

    assert turns(rt) == []


@pytest.mark.parametrize(
    ("age", "error"),
    [
        ("90", "'90' is no age: write it as 90d, 12w or 36h"),
        ("-1d", "'-1d' is no age"),
        ("9999999w", "up to 36500d"),
        ("23h", "turns of the last day are not pruned: give --older-than 1d or more"),
    ],
)
def test_an_age_that_makes_no_sense_is_refused(chordage, rt, age, error):
    result = chordage("prune", "--older-than", age)

    assert result.exit_code == 2
    assert error in result.stderr


def test_without_an_age_nothing_is_deleted(chordage, rt, old_turn):
    assert chordage("prune").exit_code == 2
    assert turns(rt) == [old_turn]
