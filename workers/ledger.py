"""Commands that Redis carries out in their order while nobody waits for what it says to them."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import redis
import structlog
from redis import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

log = structlog.get_logger()

Command = tuple[Any, ...]
_FOR_A_COMMAND = () if redis.VERSION >= (5, 3) else ("_",)  # which redis-py before 5.3 asks for, and never reads
UNANSWERED = 64  # commands that may wait for their answers


class Ledger:
    """One connection at a time, for any number of threads. What was not answered on one is sent again on the next, in
    its order: commands that may come twice.
    """

    def __init__(self, pool: Callable[[], ConnectionPool]) -> None:
        """`pool`: that of the moment."""
        self._pool = pool
        self._writing = threading.Lock()
        self._unanswered: deque[Command] = deque()
        self._sent = 0  # of those, on this connection
        self._connection: Any = None
        self._of: ConnectionPool | None = None

    def write(self, *commands: Command) -> None:
        """Raises when Redis cannot be reached; it is written all the same, if Redis can be reached later."""
        with self._writing:
            self._unanswered.extend(commands)
            self._go_on(until_all_is_said=len(self._unanswered) > UNANSWERED)

    def settle(self) -> None:
        """Until everything that was written is carried out, or refused."""
        with self._writing:
            if self._unanswered:
                self._go_on(until_all_is_said=True)

    def _go_on(self, *, until_all_is_said: bool) -> None:
        for is_last in (False, True):
            try:
                self._talk(until_all_is_said=until_all_is_said)
            except BaseException as error:
                self._hang_up()  # nobody knows what has gone
                if is_last or not isinstance(error, RedisError | OSError):
                    raise
                log.info("notes are sent again on another connection", notes=len(self._unanswered), error=str(error))
            else:
                return

    def _talk(self, *, until_all_is_said: bool) -> None:
        self._connect()
        while self._sent and self._connection.can_read():
            self._hear_one()
        unsent = list(itertools.islice(self._unanswered, self._sent, None))
        self._sent += len(unsent)
        # A check of its health would take the answer to something else for its own.
        self._connection.send_packed_command(self._connection.pack_commands(unsent), check_health=False)
        while self._sent and until_all_is_said:
            self._hear_one()

    def _connect(self) -> None:
        if self._connection is None:
            self._of = self._pool()
            self._connection = self._of.get_connection(*_FOR_A_COMMAND)
        elif not _is_connected(self._connection):
            raise RedisConnectionError("its pool was closed")
        elif not self._sent and self._connection.can_read():
            raise RedisConnectionError("it was closed at the other end")

    def _hear_one(self) -> None:
        try:
            self._connection.read_response()
        except ResponseError as error:
            log.warning("redis refuses a note of a message", note=self._unanswered[0][0], error=str(error))
        self._sent -= 1
        self._unanswered.popleft()

    def _hang_up(self) -> None:
        connection, of, self._connection, self._of, self._sent = self._connection, self._of, None, None, 0
        if connection is not None and of is not None:
            connection.disconnect()
            of.release(connection)


def _is_connected(connection: Any) -> bool:
    known = getattr(connection, "is_connected", None)
    return connection._sock is not None if known is None else known  # noqa: SLF001 - redis-py before 5.3 has no other
