"""Members of a fleet use the database, and the schema in it, that the fleet uses."""

from __future__ import annotations

import pytest

from chordage.config.settings import as_environment, load
from chordage.workers.fleet.fleet import Fleet
from support.plain_room import forget_settings

URL = "postgresql://me@h/x"


@pytest.mark.parametrize(
    "given", [{"database_url": URL, "database_schema": "agents"}, {"database_url": URL}, {"database_schema": None}]
)
def test_member_reads_the_database_of_the_fleet_from_its_environment(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    forget_settings(monkeypatch)
    fleet = Fleet(load(**given), [])

    complete = fleet._complete("redis://127.0.0.1:1/0")
    for name, value in as_environment(complete).items():
        monkeypatch.setenv(name, value)

    assert load().database == complete.database == fleet.settings.database
