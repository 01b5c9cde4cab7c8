"""Statements of the hot path, compiled once and handed to the driver as they are.

A turn is some twenty-five statements, and the library's way to execute one costs more than the statement: cache keys,
a context, a result, for each. What is written here in SQLAlchemy Core is compiled by SQLAlchemy for each dialect at
its first use, with the bind and result types that it knows, and from then on costs what the driver costs. Errors are
the library's again, and a connection that broke is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.sql.compiler import SQLCompiler

from chordage.orchestrator.store.driver_errors import as_the_library_says
from chordage.orchestrator.store.tx import Tx

Convert = Callable[[Any], Any]
Row = dict[str, Any]

# Called with every statement sent. Empty but in tests and the benchmark, which count.
observers: list[Callable[[Tx, str], None]] = []


@dataclass(frozen=True, slots=True)
class Compiled:
    sql: str
    order: tuple[str, ...] | None  # of the binds, where they are numbered; None: they are sent by name
    defaults: dict[str, Any]
    into: tuple[tuple[str, Convert], ...]  # binds that need converting
    names: tuple[str, ...]
    out: tuple[tuple[str, Convert], ...]  # columns that need converting

    def given(self, binds: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
        values = {**self.defaults, **binds}
        for name, convert in self.into:
            values[name] = convert(values[name])
        return values if self.order is None else [values[name] for name in self.order]

    def cursor(self, tx: Tx) -> Any:
        """One of PostgreSQL's that takes numbered binds: the others look for names in the statement each time."""
        if self.order is None:
            return tx.connection.cursor()
        return tx.dialect.loaded_dbapi.RawCursor(tx.connection.dbapi_connection)


class Sent:
    """A statement that was sent, and what it finds."""

    def __init__(self, compiled: Compiled, cursor: Any) -> None:
        self._compiled = compiled
        self._cursor = cursor
        self._rows: list[Row] | None = None

    def rows(self) -> list[Row]:
        if self._rows is None:
            try:
                fetched = self._cursor.fetchall() if self._compiled.names else []
            finally:
                self._cursor.close()
            self._rows = [_row(self._compiled, values) for values in fetched]
        return self._rows


class Hot:
    def __init__(self, statement: ClauseElement | Callable[[str], ClauseElement]) -> None:
        """`statement`, or what makes it for the dialect of that name."""
        self._statement = statement
        self._compiled: dict[str, Compiled] = {}

    def rows(self, tx: Tx, binds: Mapping[str, Any]) -> list[Row]:
        return Sent(*self._send(tx, binds)).rows()

    def send(self, tx: Tx, binds: Mapping[str, Any]) -> Sent:
        """As `rows`, to be asked for later: also when the transaction is over, as in `Store.one_trip`."""
        sent = Sent(*self._send(tx, binds))
        if tx.dialect.name == "sqlite":
            sent.rows()  # it does not commit while there are rows to be fetched
        return sent

    def first(self, tx: Tx, binds: Mapping[str, Any]) -> Row | None:
        rows = self.rows(tx, binds)
        return rows[0] if rows else None

    def scalar(self, tx: Tx, binds: Mapping[str, Any]) -> Any:
        row = self.first(tx, binds)
        return None if row is None else next(iter(row.values()))

    def changed(self, tx: Tx, binds: Mapping[str, Any]) -> int:
        """How many rows the statement changed."""
        _, cursor = self._send(tx, binds)
        try:
            return int(cursor.rowcount)
        finally:
            cursor.close()

    def _send(self, tx: Tx, binds: Mapping[str, Any]) -> tuple[Compiled, Any]:
        compiled = self.compiled(tx.dialect)
        cursor = compiled.cursor(tx)
        try:
            cursor.execute(compiled.sql, compiled.given(binds))
        except tx.dialect.loaded_dbapi.Error as error:
            raise as_the_library_says(tx, compiled.sql, error) from error
        for observe in observers:
            observe(tx, compiled.sql)
        return compiled, cursor

    def compiled(self, dialect: Dialect) -> Compiled:
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = self._compile(dialect)
        return found

    def _compile(self, dialect: Dialect) -> Compiled:
        statement = self._statement if isinstance(self._statement, ClauseElement) else self._statement(dialect.name)
        compiler = statement.compile(dialect=_with_plain_binds(dialect))
        assert isinstance(compiler, SQLCompiler)
        return Compiled(
            sql=compiler.string,
            order=tuple(compiler.positiontup) if compiler.positiontup is not None else None,
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


def _row(compiled: Compiled, values: Sequence[Any]) -> Row:
    row = dict(zip(compiled.names, values, strict=True))
    for name, convert in compiled.out:
        row[name] = convert(row[name])
    return row
