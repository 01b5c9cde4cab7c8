"""Statements that are compiled once and handed to the driver as they are, and what their rows become.

A turn sends some twenty-five statements, and SQLAlchemy's way to execute one (cache keys, a context, a result) costs
more than most of them do. A statement that every turn sends is written in SQLAlchemy Core, compiled for each dialect at
its first use, with the bind and result types that SQLAlchemy knows, and from then on costs what the driver costs.
Errors are SQLAlchemy's again, and a broken connection is thrown away.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import ClauseElement, ColumnElement, Dialect, Table, Update, bindparam, func, literal_column, select
from sqlalchemy import insert as insert_into
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler

from chordage.orchestrator.core.contents import Cipher
from chordage.orchestrator.core.errors import LostRace, WrongKey
from chordage.orchestrator.store import pipeline
from chordage.orchestrator.store.contents import Contents, Owned, cipher_of
from chordage.orchestrator.store.database import CIPHER, Tx
from chordage.orchestrator.store.pipeline import Pipeline, library_error

log = structlog.get_logger()

Convert = Callable[[Any], Any]
Row = dict[str, Any]
Raw = TypeVar("Raw")
Read = TypeVar("Read")

# Called with every statement sent. Empty except in tests and the benchmark, which count.
observers: list[Callable[[Tx, str], None]] = []

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class CompiledStatement:
    sql: str
    order: tuple[tuple[str, Convert | None], ...]  # of the binds, where they are numbered
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
        values = {**self.defaults, **binds}
        return [values[name] if convert is None else convert(values[name]) for name, convert in self.order]

    def row(self, values: Sequence[Any]) -> Row:
        row = dict(zip(self.names, values, strict=True))
        for name, convert in self.out:
            row[name] = convert(row[name])
        return row


@dataclass(frozen=True, slots=True)
class EncryptedStatement(CompiledStatement):
    """One that stores contents, on a store with a cipher: each of these binds is stored with its owner."""

    owners: tuple[tuple[str, str], ...] = ()  # the bind, and the bind that says whose it is

    def values(self, binds: Mapping[str, Any]) -> dict[str, Any]:
        return CompiledStatement.values(self, self._owned(binds))

    def in_order(self, binds: Mapping[str, Any]) -> list[Any]:
        return CompiledStatement.in_order(self, self._owned(binds))

    def _owned(self, binds: Mapping[str, Any]) -> dict[str, Any]:
        contents = {
            name: Owned(binds[owner], value) for name, owner in self.owners if (value := binds.get(name)) is not None
        }
        return {**binds, **contents}


class SentStatement(Protocol):
    """A statement that was sent. Its result can be read after the transaction too."""

    def rows(self) -> list[Row]: ...
    def changed(self) -> int:
        """How many rows the statement changed."""
        ...


class FetchedRows:
    """The result of a statement that went through a cursor."""

    def __init__(self, compiled: CompiledStatement, cursor: Any) -> None:
        fetched = cursor.fetchall() if compiled.names else []
        self._changed = int(cursor.rowcount)
        self._rows = [compiled.row(values) for values in fetched]

    def rows(self) -> list[Row]:
        return self._rows

    def changed(self) -> int:
        return self._changed


class PipelinedStatement:
    """A statement in a pipeline. Its result is there once the pipeline was flushed, which reading it does."""

    def __init__(self, tx: Tx, through: Pipeline, compiled: CompiledStatement, values: Sequence[Any]) -> None:
        self._tx = tx
        self._compiled = compiled
        self._pipeline = through
        self._pending = pipeline.post(tx, through, compiled, values)

    def rows(self) -> list[Row]:
        return [self._compiled.row(values) for values in self._pipeline.read(self._result())]

    def changed(self) -> int:
        return self._result().command_tuples or 0

    def _result(self) -> Any:
        if self._pending.result is None:
            pipeline.flush(self._tx)
        if self._pending.result is None:
            raise AssertionError(f"the transaction was rolled back before this was sent: {self._compiled.sql}")
        return self._pending.result


class PreparedStatement:
    def __init__(self, statement: ClauseElement | Callable[[str], ClauseElement]) -> None:
        """`statement`, or a function that makes it for the dialect of that name."""
        self._statement = statement
        self._compiled: dict[tuple[str, Cipher | None], CompiledStatement] = {}

    def send(self, tx: Tx, binds: Mapping[str, Any]) -> SentStatement:
        """As `rows`, without waiting for the result: the statement may go with the next one, or with the commit."""
        through: Pipeline | None = tx.info.get(Pipeline)
        sent: SentStatement
        if through is None:
            compiled = self.compiled(tx.dialect, style=CURSOR_BINDS[tx.dialect.name])
            sent = _fetch(tx, compiled, binds)
        else:
            compiled = self.compiled(tx.dialect)
            sent = PipelinedStatement(tx, through, compiled, compiled.in_order(binds))
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

    def compiled(self, dialect: Dialect, *, style: str | None = None) -> CompiledStatement:
        """`style`: how binds are written; as the database itself takes them, if not given."""
        style = style or DATABASE_BINDS[dialect.name]
        key = style, getattr(dialect, CIPHER, None)  # as `cipher_of`, which every statement would call
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(dialect, style)
        return compiled

    def _compile(self, dialect: Dialect, style: str) -> CompiledStatement:
        statement = self._statement if isinstance(self._statement, ClauseElement) else self._statement(dialect.name)
        of_style = type(dialect)(paramstyle=style)  # type: ignore[call-arg]  # each dialect takes it
        setattr(of_style, CIPHER, cipher_of(dialect))
        compiler = statement.compile(dialect=of_style)
        assert isinstance(compiler, SQLCompiler)
        columns = compiler._result_columns  # noqa: SLF001 - no public way
        kinds = {str(column.keyname): column.type.dialect_impl(dialect) for column in columns}
        into = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in compiler.binds.items()}
        out = {name: kind.result_processor(dialect, None) for name, kind in kinds.items()}
        compiled = CompiledStatement(
            sql=compiler.string,
            order=tuple((name, into[name]) for name in compiler.positiontup or ()),
            defaults={name: bind.effective_value for name, bind in compiler.binds.items() if not bind.required},
            into=tuple((name, convert) for name, convert in into.items() if convert is not None),
            names=tuple(str(column.keyname) for column in columns),
            out=tuple((name, convert) for name, convert in out.items() if convert is not None),
        )
        if cipher_of(dialect) is None:
            return compiled
        owners = tuple(_owner_bind(name, bind.type) for name, bind in compiler.binds.items() if bind.required)
        return _encrypted(compiled, tuple(filter(None, owners)))


def _owner_bind(name: str, kind: Any) -> tuple[str, str] | None:
    """A bind of contents, and the one of its owner: `thread_id_3` for `content_3`, `by_thread_id` for `by_content`."""
    if not isinstance(kind, Contents):
        return None
    column = kind.place.partition(".")[2]
    assert column in name, f"the bind {name} of {kind.place} must have the name of its column in its own"
    return name, name.replace(column, kind.owner)


def _encrypted(compiled: CompiledStatement, owners: tuple[tuple[str, str], ...]) -> CompiledStatement:
    fields = {name: getattr(compiled, name) for name in CompiledStatement.__dataclass_fields__}
    return EncryptedStatement(**fields, owners=owners) if owners else compiled


# As the database takes binds, so that nothing has to rewrite the statement; and as the driver's cursors take them.
DATABASE_BINDS = {"postgresql": "numeric_dollar", "sqlite": "named"}
CURSOR_BINDS = {"postgresql": "pyformat", "sqlite": "named"}


def _fetch(tx: Tx, compiled: CompiledStatement, binds: Mapping[str, Any]) -> FetchedRows:
    is_single = pipeline.BEGIN in tx.info and pipeline.PLAIN in tx.get_execution_options()
    if is_single:
        pipeline.begin_single(tx)
    assert tx.connection.dbapi_connection is not None
    cursor = tx.connection.dbapi_connection.cursor()
    try:
        cursor.execute(compiled.sql, compiled.values(binds))
        fetched = FetchedRows(compiled, cursor)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, compiled.sql, error) from error
    finally:
        cursor.close()
    if is_single:
        pipeline.commit_single(tx)
    return fetched


class GuardedUpdate:
    """An UPDATE that must change a row. Where it changes none, its transaction ends with LostRace and stores nothing.

    So the statements behind it need not wait for its result: in a pipeline they are sent together with it. There the
    database itself ends the transaction, by a division by the number of rows that were changed.
    """

    def __init__(self, statement: Update, *returning: ColumnElement[Any]) -> None:
        columns = returning or (literal_column("1").label("moved"),)
        moved = statement.returning(*columns).cte("moved")
        number = select(func.count()).select_from(moved).scalar_subquery()
        self._plain = PreparedStatement(statement.returning(*columns))
        self._in_pipeline = PreparedStatement(select(moved).where(literal_column("1").op("/")(number) == 1))

    def send(self, tx: Tx, binds: Mapping[str, Any]) -> SentStatement:
        """Raises LostRace here, or where the pipeline is flushed: with the next result that is read, or the commit."""
        if Pipeline in tx.info:
            return self._in_pipeline.send(tx, binds)
        sent = self._plain.send(tx, binds)
        if not sent.rows():
            raise LostRace
        return sent


MAX_ROWS = 50  # of one INSERT; SQLite takes 32,766 binds, and each number of rows is compiled once


class BulkInsert:
    """INSERTs of several rows into one table: one compiled statement for each number of rows that occurs."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._of_size: dict[int, tuple[list[str], PreparedStatement]] = {}

    def send(self, tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
        for start in range(0, len(rows), MAX_ROWS):
            some = rows[start : start + MAX_ROWS]
            names, statement = self._statement(len(some))
            values = [row[name] for row in some for name in self._columns]
            statement.send(tx, dict(zip(names, values, strict=True)))

    def _statement(self, size: int) -> tuple[list[str], PreparedStatement]:
        """For so many rows; and the names of its binds, row by row."""
        if size not in self._of_size:
            types = {name: self._table.c[name].type for name in self._columns}
            values = [{name: bindparam(f"{name}_{n}", type_=types[name]) for name in types} for n in range(size)]
            names = [bind.key for row in values for bind in row.values()]
            self._of_size[size] = names, PreparedStatement(insert_into(self._table).values(values))
        return self._of_size[size]


_INSERT: dict[str, Callable[[Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_or(dialect: str, table: Table) -> Any:
    """An INSERT that can say ON CONFLICT, which SQLAlchemy has for each dialect under another name."""
    return _INSERT[dialect](table)


def readable_rows(rows: Iterable[Raw], read: Callable[[Raw], Read]) -> list[Read]:
    """Without the rows of a newer version that have an enum value this one does not know: during a deploy both work.

    So an unknown row stops nothing but the work on itself; it is left to the newer workers. Code that reads a single
    row fails instead.
    """
    records: list[Read] = []
    for row in rows:
        try:
            records.append(read(row))
        except ValueError as error:  # of an enum
            log.warning("a row of a newer version is left to newer workers", error=str(error))
    return records


def decryptable(rows: Iterator[Raw]) -> Iterator[Raw]:
    """Without rows whose contents cannot be decrypted: the work on them waits, and holds up no other that is found with
    it. `rows`: of one result, from which the next can be had after one that failed.
    """
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except WrongKey as error:
            log.error("work waits for a key", error=str(error))  # noqa: TRY400 - the text says all
            continue
        yield row
