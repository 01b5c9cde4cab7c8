"""Commands that Redis carries out in their order while nobody waits for what it says to them."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from redis import ConnectionPool
from redis.exceptions import RedisError

log = structlog.get_logger()

Command = tuple[Any, ...]
UNREAD = 64  # answers that may wait to be read


class Ledger:
    """One connection, for any number of threads."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._writing = threading.Lock()
        self._connection: Any = None
        self._unread = 0

    def write(self, *commands: Command) -> None:
        """Raises when Redis cannot be reached; what it says to them is read later, and logged if it refuses."""
        with self._writing:
            self._hear(all_of_it=self._unread > UNREAD)
            try:
                self._send(commands)
            except (RedisError, OSError) as error:
                self._lose(error)
                self._send(commands)

    def settle(self) -> None:
        """Until everything that was written is carried out, or lost with its connection."""
        with self._writing:
            self._hear(all_of_it=True)

    def _send(self, commands: tuple[Command, ...]) -> None:
        if self._connection is None:
            self._connection = self._pool.get_connection()
        packed = self._connection.pack_commands(commands)
        # A check of its health would take the answer to something else for its own.
        self._connection.send_packed_command(packed, check_health=False)
        self._unread += len(commands)

    def _hear(self, *, all_of_it: bool) -> None:
        """Also where nothing is due: a connection that was closed at the other end has something to read."""
        if self._connection is None:
            return
        try:
            if not self._connection.is_connected:
                raise ConnectionError("the pool was closed")
            while (self._unread and all_of_it) or self._connection.can_read():
                self._unread -= 1
                self._connection.read_response()
        except (RedisError, OSError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        if self._unread > 0:
            log.warning("notes of messages may be lost", notes=self._unread, error=str(error))
        connection, self._connection, self._unread = self._connection, None, 0
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)
