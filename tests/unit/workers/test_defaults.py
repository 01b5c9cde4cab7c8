"""Defaults of settings are those of the rules that they feed, and no field of a turn is lost."""

from __future__ import annotations

from dataclasses import fields

import pytest

from chordage.config.settings import Settings
from chordage.orchestrator.core.bus import BusRules
from chordage.orchestrator.core.deliveries import DeliveryRules
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.message import Bounds, Message, TurnRequest
from chordage.orchestrator.store import schema
from chordage.workers import bootstrap

# Fields of a request that are no column of its turn by their own name, and where they are kept or used instead.
ELSEWHERE = {
    "message": "its fields are columns",
    "limits": "max_rounds, timeout_ms",
    "group": "grp, rank",
    "step": "the table stepped",
    "once": "the table replays",
    "when_busy": "decided as it is stored",
    "while_waiting": "decided as it is stored",
    "decisions": "the table decisions",
    "by": "the table decisions, decided_by",
    "audited": "the table caller_audit",
    "fork": "the table forks",
}


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("CHORDAGE_ROOM", str(tmp_path))
    return bootstrap.runtime_from(Settings(), with_redis=False)


def test_defaults_of_settings_are_those_of_the_rules(runtime) -> None:
    assert runtime.leases == LeaseRules()
    assert runtime.bounds == Bounds()
    assert runtime.bus_rules == BusRules()
    assert runtime.delivery == DeliveryRules()
    assert runtime.budgets == DEFAULT_BUDGETS


def test_every_field_of_a_request_has_a_column_or_is_accounted_for() -> None:
    columns = set(schema.turns.c.keys())
    names = {field.name for field in (*fields(TurnRequest), *fields(Message))}

    assert {name for name in names - columns if name not in ELSEWHERE} == set()
    assert ELSEWHERE.keys() <= names
