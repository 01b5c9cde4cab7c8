"""How statements reach PostgreSQL: as many in one round trip as can go together, or one by one.

With the pipeline (CHORDAGE_PIPELINE=on, the default) prepared statements go to libpq in pipeline mode, through
`psycopg.pq`, which psycopg documents for such uses. The driver's cursor costs more than most of these statements do,
and it waits for an answer to each of them, to BEGIN and to COMMIT. A statement whose result is not needed at once is
posted: it goes with the next one whose result is, or with the commit. The driver sees the same connection in the same
transaction, so all other statements go through its cursors as usual.

Without it (CHORDAGE_PIPELINE=off) the same statements go through plain cursors, and nothing outlives a transaction:
there are no prepared statements and no start-up options, every setting is local to its transaction, and a single
statement is a transaction of its own. So a pooler may give each transaction another session (PgBouncer in transaction
mode). The price is a round trip for every statement, and two more for each single one.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import PoolResetState

if TYPE_CHECKING:
    from psycopg import Connection as Driver
    from psycopg.pq.abc import PGresult


# The result of a prepared statement has other types since a migration, or the statement was deallocated. A new
# connection is free of both.
STALE_PLAN = {"0A000", "26000"}
PLAIN = "chordage_plain"  # the option of an engine whose statements are each a transaction of their own
# In the info of a connection to PostgreSQL without a pipeline: the statements that begin a transaction.
BEGIN = "chordage_begin"
SINCE_17 = 170_000  # a server of PostgreSQL can end a transaction that takes too long


def library_error(tx: Connection, sql: str, error: Any) -> BaseException:
    """An error of the driver as SQLAlchemy would have raised it. A broken connection is thrown away."""
    dialect = tx.dialect
    is_lost = dialect.is_disconnect(error, tx.connection, None)
    if is_lost:
        tx.invalidate(error)
    wrapped: BaseException = DBAPIError.instance(
        sql, None, error, dialect.loaded_dbapi.Error, connection_invalidated=is_lost, dialect=dialect
    )
    return wrapped


class NamedStatement(Protocol):
    @property
    def sql(self) -> str: ...
    @property
    def name(self) -> bytes:
        """Unique in this process."""
        ...


class PendingResult:
    """The result of one statement, once it was sent."""

    result: PGresult | None = None


class Pipeline:
    """The statements that go to one connection."""

    def __init__(self, driver: Driver[Any]) -> None:
        from psycopg import pq
        from psycopg.adapt import PyFormat, Transformer

        self._libpq = driver.pgconn
        self._idle, self._open = pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS
        self._failed = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED}
        self._synced = pq.ExecStatus.PIPELINE_SYNC
        self._text = PyFormat.TEXT
        self._writer, self._reader = Transformer(driver), Transformer(driver)
        self._prepared: set[bytes] = set()
        self._posted: list[tuple[PendingResult, NamedStatement, Sequence[Any]]] = []
        self._reading = threading.Lock()
        self._readable = _when_readable(driver.pgconn.socket)
        # Whether posted statements go with a commit. The driver begins no transaction: BEGIN is sent from here.
        self.in_transaction = False

    @property
    def _must_begin(self) -> bool:
        return self.in_transaction and bool(self._libpq.transaction_status == self._idle)

    @property
    def _may_commit(self) -> bool:
        """A transaction is open, and none of its statements has failed: otherwise the driver does what is left."""
        return bool(self._libpq.transaction_status == self._open)

    def post(self, statement: NamedStatement, values: Sequence[Any]) -> PendingResult:
        pending = PendingResult()
        self._posted.append((pending, statement, self._writer.dump_sequence(values, [self._text] * len(values))))
        return pending

    def clear(self) -> None:
        self._posted.clear()
        self.in_transaction = False

    def flush(self, *, commit: bool) -> None:
        """Send what was posted and receive the results. Raises the error of the first statement that failed."""
        if not self._posted and not (self._may_commit if commit else self._must_begin):
            return
        try:
            failed = self._send_and_receive(commit=commit)
        except BaseException:
            self._libpq.finish()  # answers that were not received would be taken for those of later statements
            raise
        finally:
            self._posted.clear()
        if failed is not None:
            from psycopg.errors import error_from_result

            error = error_from_result(failed)
            if error.sqlstate in STALE_PLAN:
                self._libpq.finish()
            raise error

    def _send_and_receive(self, *, commit: bool) -> PGresult | None:
        self._libpq.enter_pipeline_mode()
        sent = self._send(commit=commit)
        results, is_lost = self._receive()
        if is_lost:
            self._libpq.finish()
        else:
            self._libpq.exit_pipeline_mode()
        failed = None
        for purpose, result in zip(sent, results, strict=False):
            if result.status not in self._failed:
                if isinstance(purpose, PendingResult):
                    purpose.result = result
                continue
            failed = failed or result
            if isinstance(purpose, bytes):
                self._prepared.discard(purpose)
        return failed

    def _send(self, *, commit: bool) -> list[PendingResult | bytes | None]:
        """What each message is for: a result, a name to prepare, or BEGIN and COMMIT."""
        sent: list[PendingResult | bytes | None] = []
        if self._must_begin:
            self._libpq.send_query_params(b"BEGIN", None)
            sent.append(None)
        for pending, statement, texts in self._posted:
            if statement.name not in self._prepared:
                self._libpq.send_prepare(statement.name, statement.sql.encode())
                self._prepared.add(statement.name)
                sent.append(statement.name)
            self._libpq.send_query_prepared(statement.name, texts)
            sent.append(pending)
        if commit:
            self._libpq.send_query_params(b"COMMIT", None)
            sent.append(None)
        self._libpq.pipeline_sync()
        return sent

    def _receive(self) -> tuple[list[PGresult], bool]:
        """All results, and whether the connection was lost after one that says why."""
        from psycopg import OperationalError

        results: list[PGresult] = []
        try:
            self._write_out()
            while True:
                while self._libpq.is_busy():
                    self._readable.poll()
                    self._libpq.consume_input()
                result = self._libpq.get_result()
                if result is None:
                    continue
                if result.status == self._synced:
                    return results, False
                results.append(result)
        except OperationalError:
            if any(result.status in self._failed for result in results):
                return results, True
            raise

    def _write_out(self) -> None:
        """Read meanwhile: a server that cannot send its results stops reading too."""
        while self._libpq.flush():
            writable = select.poll()
            writable.register(self._libpq.socket, select.POLLIN | select.POLLOUT)
            writable.poll()
            self._libpq.consume_input()

    def read(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result. Another thread may have the connection by now."""
        with self._reading:
            self._reader.set_pgresult(result)
            return self._reader.load_rows(0, result.ntuples, tuple)


def install(engine: Engine) -> None:
    """Give each connection of the engine a pipeline. Posted statements go before any other, and before the commit."""

    def connected(driver: Any, record: Any) -> None:
        record.info[Pipeline] = Pipeline(driver)

    _watch_sessions(engine)
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "before_cursor_execute", lambda tx, *_: flush(tx))
    event.listen(engine, "commit", lambda tx: flush(tx, commit=True))
    event.listen(engine, "rollback", _on_rollback)


def _on_begin(tx: Connection) -> None:
    """BEGIN goes with the first statement."""
    if (pipeline := pipeline_of(tx)) is not None:
        pipeline.in_transaction = not _is_plain(tx)


def _on_rollback(tx: Connection) -> None:
    if not tx.invalidated and (pipeline := pipeline_of(tx)) is not None:
        pipeline.clear()


def pipeline_of(tx: Connection) -> Pipeline | None:
    """None: its statements go one by one."""
    return tx.info.get(Pipeline)


def post(tx: Connection, pipeline: Pipeline, statement: NamedStatement, values: Sequence[Any]) -> PendingResult:
    try:
        pending = pipeline.post(statement, values)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, statement.sql, error) from error
    if not pipeline.in_transaction:
        flush(tx)
    return pending


def flush(tx: Connection, *, commit: bool = False) -> None:
    pipeline = pipeline_of(tx)
    if pipeline is None:
        return
    try:
        pipeline.flush(commit=commit)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, "statements of one round trip", error) from error
    except BaseException as error:
        tx.invalidate(error)
        raise
    if commit:
        pipeline.in_transaction = False


def install_plain(engine: Engine, settings: Mapping[str, str], settings_since_17: Mapping[str, str]) -> None:
    """Leave no state in the session: each transaction makes these settings, in one round trip with its BEGIN."""

    def connected(driver: Any, record: Any) -> None:
        local = {**settings, **(settings_since_17 if driver.info.server_version >= SINCE_17 else {})}
        calls = ", ".join(f"set_config({_literal(name)}, {_literal(value)}, true)" for name, value in local.items())
        record.info[BEGIN] = f"BEGIN; SELECT {calls}"

    _watch_sessions(engine)
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", lambda tx: None if _is_plain(tx) else _begin(tx))
    event.listen(engine, "before_cursor_execute", lambda tx, *_: begin_single(tx) if _is_plain(tx) else None)
    event.listen(engine, "after_cursor_execute", lambda tx, *_: commit_single(tx) if _is_plain(tx) else None)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def begin_single(tx: Connection) -> None:
    """Before a statement that is a transaction of its own, on a connection without a pipeline."""
    if not _is_idle(driver := _driver_of(tx)):
        driver.rollback()  # the statement before it failed
    _begin(tx)


def commit_single(tx: Connection) -> None:
    try:
        _driver_of(tx).commit()
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, "COMMIT", error) from error


def _begin(tx: Connection) -> None:
    begin = tx.connection.info[BEGIN]
    try:
        _driver_of(tx).execute(begin)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, begin, error) from error


def _is_plain(tx: Connection) -> bool:
    return PLAIN in tx.get_execution_options()


def _driver_of(tx: Connection) -> Any:
    return tx.connection.dbapi_connection


def _is_idle(driver: Any) -> bool:
    return bool(driver.pgconn.transaction_status == 0)  # psycopg.pq.TransactionStatus.IDLE


_USED = "chordage_used"  # of a connection: it was given out before


def _watch_sessions(engine: Engine) -> None:
    event.listen(engine, "checkout", _check_session)
    event.listen(engine, "reset", _reset)


def _check_session(driver: Any, record: Any, _proxy: Any) -> None:
    """Raises DisconnectionError when the server has ended the session while it was not in use. A server that restarts
    closes its sockets, and sends nothing else to an idle session, so a look at the socket tells without a round trip.
    A host that vanished without a word is not noticed here.
    """
    if _USED not in record.info:
        record.info[_USED] = True
        return
    if driver.closed or _when_readable(driver.pgconn.socket).poll(0):
        raise DisconnectionError("the server has ended this session")


def _when_readable(socket: int) -> select.poll:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return poll


def _reset(driver: Any, record: Any, state: PoolResetState) -> None:
    """A transaction that was left open, neither committed nor rolled back. A commit that was refused before it was sent
    is not rolled back either.
    """
    if Pipeline in record.info:
        record.info[Pipeline].clear()
    if not state.transaction_was_reset and not _is_idle(driver):
        driver.rollback()
