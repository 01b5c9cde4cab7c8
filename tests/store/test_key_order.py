"""JSON comes back from every column as it was written: a model reads its own calls again, and what it wrote counts."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import bindparam, select, type_coerce

from chordage.orchestrator.store import schema
from chordage.orchestrator.store.contents import ContentsForm
from chordage.orchestrator.store.schema import Json

WRITTEN = {"zeta": 1, "a": {"yy": [{"m": 1, "b": 2.50}], "b": 3, "long_name": None}, "m": 1.0, "": "x", "aa": 10**30}
COLUMNS = [
    column
    for table in schema.metadata.sorted_tables
    for column in table.columns
    if column.type is Json or getattr(column.type, "form", None) is ContentsForm.JSON
]


def test_there_are_such_columns():
    assert {"calls.arguments", "journal.body", "turns.meta", "decisions.payload"} <= set(map(str, COLUMNS))


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_keys_keep_their_order_and_numbers_their_form(store, column):
    with store.read() as tx:
        read = tx.execute(select(type_coerce(bindparam("it", WRITTEN, column.type), column.type))).scalar_one()

    assert json.dumps(read) == json.dumps(WRITTEN)
