"""The PostgreSQL schema that Chordage's tables stand in."""

from __future__ import annotations

import pytest

from chordage.config.settings import SettingsFault, load

URL = "postgresql://me:secret@h/x"


def test_it_is_part_of_the_database_url_that_every_process_gets():
    assert load(database_url=URL, database_schema="agents").database == f"{URL}?options=-csearch_path%3Dagents"
    more = f"{URL}?options=-cwork_mem%3D2MB"
    assert load(database_url=more, database_schema="agents").database == f"{more}&options=-csearch_path%3Dagents"
    assert load(database_url=URL).database == URL


def test_pipeline_is_switched_off_in_the_address_of_postgresql_only():
    assert load(database_url=URL, pipeline="off").database == f"{URL}?chordage_pipeline=off"
    both = load(database_url=URL, database_schema="agents", pipeline="off").database
    assert both == f"{URL}?options=-csearch_path%3Dagents&chordage_pipeline=off"
    assert load(database_url=URL, pipeline="on").database == URL
    assert load(database_url="sqlite:///x.db", pipeline="off").database == "sqlite:///x.db"
    with pytest.raises(SettingsFault, match="CHORDAGE_PIPELINE"):
        load(database_url=URL, pipeline="perhaps")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"database_schema": "agents"}, "database_schema is for PostgreSQL"),
        ({"database_url": "sqlite:///x.db", "database_schema": "agents"}, "database_schema is for PostgreSQL"),
        ({"database_url": f"{URL}?options=-csearch_path=b", "database_schema": "a"}, "take one of them out"),
        ({"database_url": URL, "database_schema": "pg_mine"}, "may not begin with pg_"),
        ({"database_url": URL, "database_schema": "a, b"}, "CHORDAGE_DATABASE_SCHEMA"),
        ({"database_url": URL, "database_schema": ""}, "CHORDAGE_DATABASE_SCHEMA"),
    ],
)
def test_invalid_schema_is_reported_without_the_password(given, told):
    with pytest.raises(SettingsFault, match=told) as error:
        load(**given)

    assert "secret" not in str(error.value)
