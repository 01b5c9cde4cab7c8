"""A checksum of the schema as the code has it: `migrate` notes it in the database, and whoever starts compares it.

The number of the version does not tell all while versions are still edited in place. What is summed up is what the
schema says (columns, constraints, indexes, triggers), not the SQL that makes it: releases of SQLAlchemy may write that
differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, MetaData, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

# Each of them adds to the metadata.
from chordage.orchestrator.store import schema, schema_notes, schema_poll, schema_pulse, schema_replays

DIALECTS: dict[str, Dialect] = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}  # type: ignore[no-untyped-call]  # has no types
PARTS = (schema, schema_notes, schema_poll, schema_pulse, schema_replays)


@cache
def checksum(dialect: str) -> str:
    """Of the schema on the database of this kind."""
    return checksum_of(schema.metadata, schema_notes.statements(dialect), DIALECTS[dialect])


def checksum_of(metadata: MetaData, triggers: list[str], dialect: Dialect) -> str:
    lines = [line for table in metadata.tables.values() for line in _lines(table, dialect)]
    return hashlib.sha256("\n".join(sorted([*lines, *triggers])).encode()).hexdigest()[:16]


def _lines(table: Table, dialect: Dialect) -> Iterator[str]:
    for column in table.columns:
        kind = column.type.compile(dialect=dialect)
        yield f"column {table.name}.{column.name} {kind} null {column.nullable} numbered {column.autoincrement}"
    for constraint in table.constraints:
        if isinstance(constraint, CheckConstraint):
            yield f"check {table.name} {constraint.sqltext}"
            continue
        columns = ", ".join(column.name for column in getattr(constraint, "columns", ()))
        points_to = ", ".join(element.target_fullname for element in _elements(constraint))
        yield f"{type(constraint).__name__} {table.name} ({columns}) {points_to}"
    for index in table.indexes:
        yield _line_of(index, table, dialect)


def _elements(constraint: object) -> Iterator[ForeignKey]:
    if isinstance(constraint, ForeignKeyConstraint):
        yield from constraint.elements


def _line_of(index: Index, table: Table, dialect: Dialect) -> str:
    columns = ", ".join(str(expression) for expression in index.expressions)
    where = index.dialect_options[dialect.name]["where"]
    return f"index {index.name} {table.name} ({columns}) unique {index.unique} where {where}"
