"""Errors of a driver that was spoken to directly, as the library would have raised them.

Statements of the hot path on their way to PostgreSQL, as many in one trip as can go together.

The driver's cursor costs more than most of these statements do, and it waits for an answer to each of them, to BEGIN
and to COMMIT. Here they go to libpq, which the driver lays open for such uses, as prepared statements in a pipeline.
What nobody waits for is posted: it goes with the next that somebody does wait for, or with the commit. The driver sees
the same connection in the same transaction, so whatever is not hot goes through its cursors as ever.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.pool import PoolResetState


def library_error(tx: Connection, sql: str, error: Any) -> BaseException:
    """A connection that broke is thrown away."""
    dialect = tx.dialect
    lost = dialect.is_disconnect(error, tx.connection, None)
    if lost:
        tx.invalidate(error)
    wrapped: BaseException = DBAPIError.instance(
        sql, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )
    return wrapped


if TYPE_CHECKING:
    from psycopg import Connection as Driver
    from psycopg.pq.abc import PGresult


# The result of a prepared statement has other types since a migration; somebody has thrown prepared statements away. A
# new connection knows nothing of either.
STALE_PLAN = {"0A000", "26000"}


class NamedStatement(Protocol):
    @property
    def sql(self) -> str: ...
    @property
    def name(self) -> bytes:
        """Of no other statement of this process."""
        ...


class PendingResult:
    """To one statement: it comes when the statement has gone."""

    result: PGresult | None = None


class Pipeline:
    """To one connection."""

    def __init__(self, driver: Driver[Any]) -> None:
        from psycopg import pq
        from psycopg.adapt import PyFormat, Transformer

        self._driver = driver
        self._libpq = driver.pgconn
        self._idle = pq.TransactionStatus.IDLE
        self._failed = {pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED}
        self._over = pq.ExecStatus.PIPELINE_SYNC
        self._text = PyFormat.TEXT
        self._writer, self._reader = Transformer(driver), Transformer(driver)
        self._prepared: set[bytes] = set()
        self._posted: list[tuple[PendingResult, NamedStatement, Sequence[Any]]] = []
        self._reading = threading.Lock()
        self._is_new = True
        # Whether what is posted goes with a commit. The driver begins nothing by itself: BEGIN goes from here.
        self.in_transaction = False

    def check(self) -> None:
        """Raises DisconnectionError where the server has ended the session while nobody used it. A server that restarts
        closes its sockets, and says nothing else to a session that is idle, so a look at the socket tells without a
        round trip. A host that vanished without a word is not noticed here.
        """
        if self._is_new:
            self._is_new = False
            return
        if self._driver.closed or self._is_readable():
            raise DisconnectionError("the server has ended this session")

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._libpq.socket, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def is_idle(self) -> bool:
        return bool(self._libpq.transaction_status == self._idle)

    @property
    def _must_begin(self) -> bool:
        return self.in_transaction and self.is_idle

    def post(self, statement: NamedStatement, values: Sequence[Any]) -> PendingResult:
        answer = PendingResult()
        self._posted.append((answer, statement, self._writer.dump_sequence(values, [self._text] * len(values))))
        return answer

    def forget(self) -> None:
        self._posted.clear()
        self.in_transaction = False

    def land(self, *, commit: bool) -> None:
        """All that was posted goes, and its answers come. Raises what the first of them that failed says."""
        if not self._posted and (commit or not self._must_begin):
            return
        try:
            failed = self._fly(commit=commit)
        except BaseException:
            self._libpq.finish()  # nobody knows what it has still to say
            raise
        finally:
            self._posted.clear()
        if failed is not None:
            from psycopg.errors import error_from_result

            error = error_from_result(failed)
            if error.sqlstate in STALE_PLAN:
                self._libpq.finish()
            raise error

    def _fly(self, *, commit: bool) -> PGresult | None:
        self._libpq.enter_pipeline_mode()
        sent = self._send(commit=commit)
        results, is_lost = self._hear()
        if is_lost:
            self._libpq.finish()
        else:
            self._libpq.exit_pipeline_mode()
        failed = None
        for what, result in zip(sent, results, strict=False):
            if result.status not in self._failed:
                if isinstance(what, PendingResult):
                    what.result = result
                continue
            failed = failed or result
            if isinstance(what, bytes):
                self._prepared.discard(what)
        return failed

    def _send(self, *, commit: bool) -> list[PendingResult | bytes | None]:
        """What each statement was for: an answer, to be known by a name, or neither."""
        sent: list[PendingResult | bytes | None] = []
        if self._must_begin:
            self._libpq.send_query_params(b"BEGIN", None)
            sent.append(None)
        for answer, statement, texts in self._posted:
            if statement.name not in self._prepared:
                self._libpq.send_prepare(statement.name, statement.sql.encode())
                self._prepared.add(statement.name)
                sent.append(statement.name)
            self._libpq.send_query_prepared(statement.name, texts)
            sent.append(answer)
        if commit:
            self._libpq.send_query_params(b"COMMIT", None)
            sent.append(None)
        self._libpq.pipeline_sync()
        return sent

    def _hear(self) -> tuple[list[PGresult], bool]:
        """What each said, and whether the connection was lost behind one that says why."""
        from psycopg import OperationalError

        results: list[PGresult] = []
        try:
            self._flush()
            while True:
                while self._libpq.is_busy():
                    self._wait(select.POLLIN)
                    self._libpq.consume_input()
                result = self._libpq.get_result()
                if result is None:
                    continue
                if result.status == self._over:
                    return results, False
                results.append(result)
        except OperationalError:
            if any(result.status in self._failed for result in results):
                return results, True
            raise

    def _flush(self) -> None:
        """A server that cannot say anything does not listen either, so it is heard meanwhile."""
        while self._libpq.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self._libpq.consume_input()

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._libpq.socket, events)
        poll.poll()

    def read(self, result: PGresult) -> list[tuple[Any, ...]]:
        """Also when the connection is somebody else's already."""
        with self._reading:
            self._reader.set_pgresult(result)
            return self._reader.load_rows(0, result.ntuples, tuple)


PLAIN = "chordage_plain"  # the option of an engine whose statements are each a transaction of their own


def install(engine: Engine) -> None:
    """To every connection of the engine. What was posted goes before anything else does, and before the commit."""

    def connected(driver: Any, record: Any) -> None:
        record.info[Pipeline] = Pipeline(driver)

    event.listen(engine, "connect", connected)
    event.listen(engine, "checkout", lambda _driver, record, _proxy: record.info[Pipeline].check())
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "before_cursor_execute", lambda tx, *_: flush(tx))
    event.listen(engine, "commit", _on_commit)
    event.listen(engine, "rollback", _on_rollback)
    event.listen(engine, "reset", _on_reset)
    event.listen(engine, "checkin", _on_checkin)


def _on_begin(tx: Connection) -> None:
    """With the first statement that goes."""
    pipeline_of(tx).in_transaction = not tx.get_execution_options().get(PLAIN, False)


def _on_commit(tx: Connection) -> None:
    flush(tx, commit=True)
    pipeline_of(tx).in_transaction = False


def _on_rollback(tx: Connection) -> None:
    if not tx.invalidated:
        pipeline_of(tx).forget()


def _on_reset(driver: Any, record: Any, state: PoolResetState) -> None:
    """What somebody left open who neither committed nor rolled back."""
    if not state.transaction_was_reset and Pipeline in record.info and not record.info[Pipeline].is_idle:
        driver.rollback()


def _on_checkin(_driver: Any, record: Any) -> None:
    """A commit that was refused before it began is not rolled back."""
    if Pipeline in record.info:
        record.info[Pipeline].forget()


def pipeline_of(tx: Connection) -> Pipeline:
    wire: Pipeline = tx.connection.info[Pipeline]
    return wire


def post(tx: Connection, statement: NamedStatement, values: Sequence[Any]) -> PendingResult:
    wire = pipeline_of(tx)
    try:
        answer = wire.post(statement, values)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, statement.sql, error) from error
    if not wire.in_transaction:
        flush(tx)
    return answer


def flush(tx: Connection, *, commit: bool = False) -> None:
    try:
        pipeline_of(tx).land(commit=commit)
    except tx.dialect.loaded_dbapi.Error as error:
        raise library_error(tx, "statements that went together", error) from error
    except BaseException as error:
        tx.invalidate(error)
        raise
