"""Several rows in one INSERT: one statement a round, whatever its width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, bindparam
from sqlalchemy import insert as insert_into

from chordage.orchestrator.store.hot import Hot
from chordage.orchestrator.store.tx import Tx

WIDEST = 50  # rows of one statement; SQLite takes 32,766 binds, and each width is compiled once


class Insert:
    """INSERTs into one table, one compiled statement for each number of rows that occurs."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._of_width: dict[int, Hot] = {}

    def send(self, tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
        statement = self._of_width.get(len(rows))
        if statement is None:
            statement = self._of_width[len(rows)] = self._of(len(rows))
        statement.send(tx, {f"{name}_{n}": row[name] for n, row in enumerate(rows) for name in self._columns})

    def _of(self, width: int) -> Hot:
        types = {name: self._table.c[name].type for name in self._columns}
        values = [{name: bindparam(f"{name}_{n}", type_=types[name]) for name in types} for n in range(width)]
        return Hot(insert_into(self._table).values(values))


def insert(tx: Tx, into: Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), WIDEST):
        into.send(tx, rows[start : start + WIDEST])
