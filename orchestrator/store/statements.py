"""Statements of the hot path, compiled once and handed to the driver as they are.

A turn is some twenty-five statements, and the library's way to execute one costs more than the statement: cache keys,
a context, a result, for each. What is written here in SQLAlchemy Core is compiled by SQLAlchemy for each dialect at
its first use, with the bind and result types that it knows, and from then on costs what the driver costs. Errors are
the library's again, and a connection that broke is thrown away.

Several rows in one INSERT: one statement a round, whatever its width.

Rows that a newer version has written, with words that this one does not know: during a deploy both are at work.

Whoever reads many rows at once passes over those, so that they stop nothing else; they are left to the newer workers.
Whoever reads a single one fails, and only what was to be done with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import ClauseElement, Dialect, Table, bindparam
from sqlalchemy import insert as insert_into
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from chordage.orchestrator.store import pipeline
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.pipeline import library_error

Convert = Callable[[Any], Any]
Row = dict[str, Any]

# Called with every statement sent. Empty but in tests and the benchmark, which count.
observers: list[Callable[[Tx, str], None]] = []


_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class CompiledStatement:
    sql: str
    order: tuple[str, ...] | None  # of the binds, where they are numbered; None: they are sent by name
    defaults: dict[str, Any]
    into: tuple[tuple[str, Convert], ...]  # binds that need converting
    names: tuple[str, ...]
    out: tuple[tuple[str, Convert], ...]  # columns that need converting
    name: bytes = field(default_factory=lambda: b"hot_%d" % next(_numbers))

    def values(self, binds: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self.defaults, **binds}
        for name, convert in self.into:
            values[name] = convert(values[name])
        return values

    def in_order(self, binds: Mapping[str, Any]) -> list[Any]:
        assert self.order is not None
        values = self.values(binds)
        return [values[name] for name in self.order]

    def row(self, values: Sequence[Any]) -> Row:
        row = dict(zip(self.names, values, strict=True))
        for name, convert in self.out:
            row[name] = convert(row[name])
        return row


class SentStatement(Protocol):
    """A statement that was sent, and what it finds. Also when the transaction is over."""

    def rows(self) -> list[Row]: ...
    def changed(self) -> int:
        """How many rows the statement changed."""
        ...


class FetchedRows:
    """Of a database where nothing travels: it is done."""

    def __init__(self, compiled: CompiledStatement, cursor: Any) -> None:
        try:
            fetched = cursor.fetchall() if compiled.names else []
            self._changed = int(cursor.rowcount)
        finally:
            cursor.close()
        self._rows = [compiled.row(values) for values in fetched]

    def rows(self) -> list[Row]:
        return self._rows

    def changed(self) -> int:
        return self._changed


class PipelinedStatement:
    def __init__(self, tx: Tx, compiled: CompiledStatement, values: Sequence[Any]) -> None:
        self._tx = tx
        self._compiled = compiled
        self._wire = pipeline.pipeline_of(tx)
        self._answer = pipeline.post(tx, compiled, values)

    def rows(self) -> list[Row]:
        return [self._compiled.row(values) for values in self._wire.read(self._result())]

    def changed(self) -> int:
        return self._result().command_tuples or 0

    def _result(self) -> Any:
        if self._answer.result is None:
            pipeline.flush(self._tx)
        if self._answer.result is None:
            raise AssertionError(f"it was given up before it was sent: {self._compiled.sql}")
        return self._answer.result


class PreparedStatement:
    def __init__(self, statement: ClauseElement | Callable[[str], ClauseElement]) -> None:
        """`statement`, or what makes it for the dialect of that name."""
        self._statement = statement
        self._compiled: dict[str, CompiledStatement] = {}

    def send(self, tx: Tx, binds: Mapping[str, Any]) -> SentStatement:
        """As `rows`, to be asked for later or never: it goes with the next that is waited for, or with the commit."""
        compiled = self.compiled(tx.dialect)
        sent = (
            _fetch(tx, compiled, binds)
            if compiled.order is None
            else PipelinedStatement(tx, compiled, compiled.in_order(binds))
        )
        for observe in observers:
            observe(tx, compiled.sql)
        return sent

    def rows(self, tx: Tx, binds: Mapping[str, Any]) -> list[Row]:
        return self.send(tx, binds).rows()

    def first(self, tx: Tx, binds: Mapping[str, Any]) -> Row | None:
        rows = self.rows(tx, binds)
        return rows[0] if rows else None

    def scalar(self, tx: Tx, binds: Mapping[str, Any]) -> Any:
        row = self.first(tx, binds)
        return None if row is None else next(iter(row.values()))

    def changed(self, tx: Tx, binds: Mapping[str, Any]) -> int:
        """How many rows the statement changed."""
        return self.send(tx, binds).changed()

    def compiled(self, dialect: Dialect) -> CompiledStatement:
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = self._compile(dialect)
        return found

    def _compile(self, dialect: Dialect) -> CompiledStatement:
        statement = self._statement if isinstance(self._statement, ClauseElement) else self._statement(dialect.name)
        compiler = statement.compile(dialect=_with_plain_binds(dialect))
        assert isinstance(compiler, SQLCompiler)
        return CompiledStatement(
            sql=compiler.string,
            order=tuple(compiler.positiontup or ()) if dialect.name == "postgresql" else None,
            defaults={name: bind.effective_value for name, bind in compiler.binds.items() if not bind.required},
            into=tuple(_converters(compiler, dialect)),
            names=tuple(str(column.keyname) for column in compiler._result_columns),  # noqa: SLF001 - no public way
            out=tuple(_readers(compiler, dialect)),
        )


PLAIN_BINDS = {"postgresql": "numeric_dollar", "sqlite": "named"}


def _with_plain_binds(dialect: Dialect) -> Dialect:
    """As the database itself takes them, so that the driver need not rewrite the statement."""
    return type(dialect)(paramstyle=PLAIN_BINDS[dialect.name])  # type: ignore[call-arg]  # each dialect takes it


def _converters(compiler: SQLCompiler, dialect: Dialect) -> list[tuple[str, Convert]]:
    found = ((name, bind.type.dialect_impl(dialect).bind_processor(dialect)) for name, bind in compiler.binds.items())
    return [(name, convert) for name, convert in found if convert is not None]


def _readers(compiler: SQLCompiler, dialect: Dialect) -> list[tuple[str, Convert]]:
    columns = compiler._result_columns  # noqa: SLF001 - no public way
    found = ((str(c.keyname), c.type.dialect_impl(dialect).result_processor(dialect, None)) for c in columns)
    return [(name, convert) for name, convert in found if convert is not None]


def _fetch(tx: Tx, compiled: CompiledStatement, binds: Mapping[str, Any]) -> FetchedRows:
    assert tx.connection.dbapi_connection is not None
    cursor = tx.connection.dbapi_connection.cursor()
    try:
        cursor.execute(compiled.sql, compiled.values(binds))
        return FetchedRows(compiled, cursor)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, compiled.sql, error) from error


MAX_ROWS = 50  # rows of one statement; SQLite takes 32,766 binds, and each width is compiled once


class BulkInsert:
    """INSERTs into one table, one compiled statement for each number of rows that occurs."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._of_width: dict[int, PreparedStatement] = {}

    def send(self, tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
        statement = self._of_width.get(len(rows))
        if statement is None:
            statement = self._of_width[len(rows)] = self._of(len(rows))
        statement.send(tx, {f"{name}_{n}": row[name] for n, row in enumerate(rows) for name in self._columns})

    def _of(self, width: int) -> PreparedStatement:
        types = {name: self._table.c[name].type for name in self._columns}
        values = [{name: bindparam(f"{name}_{n}", type_=types[name]) for name in types} for n in range(width)]
        return PreparedStatement(insert_into(self._table).values(values))


def insert_rows(tx: Tx, into: BulkInsert, rows: Sequence[Mapping[str, Any]]) -> None:
    for start in range(0, len(rows), MAX_ROWS):
        into.send(tx, rows[start : start + MAX_ROWS])


log = structlog.get_logger()

Raw = TypeVar("Raw")
Read = TypeVar("Read")


def readable_rows(rows: Iterable[Raw], read: Callable[[Raw], Read]) -> list[Read]:
    found: list[Read] = []
    for row in rows:
        try:
            found.append(read(row))
        except ValueError as error:  # of an enum: the word is not one of its own
            log.warning("a row of a newer version is left to newer workers", error=str(error))
    return found


_INSERT: dict[str, Callable[[Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_or(dialect: str, table: Table) -> Any:
    """An INSERT that may say ON CONFLICT, which SQLAlchemy has for each dialect under another name."""
    return _INSERT[dialect](table)
