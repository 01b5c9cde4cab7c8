"""Statements of the hot path, compiled once and handed to the driver as they are.

A turn is some twenty-five statements, and the library's way to execute one costs more than the statement: cache keys,
a context, a result, for each. What is written here in SQLAlchemy Core is compiled by SQLAlchemy for each dialect at
its first use, with the bind and result types that it knows, and from then on costs what the driver costs. Errors are
the library's again, and a connection that broke is thrown away.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import ClauseElement, Dialect
from sqlalchemy.sql.compiler import SQLCompiler

from chordage.orchestrator.store import wire
from chordage.orchestrator.store.driver_errors import as_the_library_says
from chordage.orchestrator.store.tx import Tx

Convert = Callable[[Any], Any]
Row = dict[str, Any]

# Called with every statement sent. Empty but in tests and the benchmark, which count.
observers: list[Callable[[Tx, str], None]] = []


_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Compiled:
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


class Sent(Protocol):
    """A statement that was sent, and what it finds. Also when the transaction is over."""

    def rows(self) -> list[Row]: ...
    def changed(self) -> int:
        """How many rows the statement changed."""
        ...


class Fetched:
    """Of a database where nothing travels: it is done."""

    def __init__(self, compiled: Compiled, cursor: Any) -> None:
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


class Posted:
    def __init__(self, tx: Tx, compiled: Compiled, values: Sequence[Any]) -> None:
        self._tx = tx
        self._compiled = compiled
        self._wire = wire.wire_of(tx)
        self._answer = wire.post(tx, compiled, values)

    def rows(self) -> list[Row]:
        return [self._compiled.row(values) for values in self._wire.read(self._result())]

    def changed(self) -> int:
        return self._result().command_tuples or 0

    def _result(self) -> Any:
        if self._answer.result is None:
            wire.land(self._tx)
        if self._answer.result is None:
            raise AssertionError(f"it was given up before it was sent: {self._compiled.sql}")
        return self._answer.result


class Hot:
    def __init__(self, statement: ClauseElement | Callable[[str], ClauseElement]) -> None:
        """`statement`, or what makes it for the dialect of that name."""
        self._statement = statement
        self._compiled: dict[str, Compiled] = {}

    def send(self, tx: Tx, binds: Mapping[str, Any]) -> Sent:
        """As `rows`, to be asked for later or never: it goes with the next that is waited for, or with the commit."""
        compiled = self.compiled(tx.dialect)
        sent = _fetch(tx, compiled, binds) if compiled.order is None else Posted(tx, compiled, compiled.in_order(binds))
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


def _fetch(tx: Tx, compiled: Compiled, binds: Mapping[str, Any]) -> Fetched:
    assert tx.connection.dbapi_connection is not None
    cursor = tx.connection.dbapi_connection.cursor()
    try:
        cursor.execute(compiled.sql, compiled.values(binds))
        return Fetched(compiled, cursor)
    except tx.dialect.loaded_dbapi.Error as error:
        raise as_the_library_says(tx, compiled.sql, error) from error
