"""Commands that go to Redis past the layers of its client, which cost a process more than the trip does.

`RedisTrips` waits for replies. A `CommandWriter` does not: it writes commands in their order over one connection, reads
their replies later, and sends again what was not answered when its connection is lost. `RedisHints` writes commands
that may be lost: locks of threads, which expire, and notifications, without which clients ask the database. A stage
that writes one meets no error, and waits for Redis only while a connection is made, no longer than the timeouts of the
client say. After a failure hints are dropped for a moment.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import redis
import structlog
from redis import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

log = structlog.get_logger()

Command = tuple[Any, ...]
UNANSWERED = 64  # commands whose replies may be outstanding
READ_AT_LEAST = 32  # replies at a time, because to look for them costs as much as to write a command
IDLE = 1.0  # seconds after which a connection may have been closed at the other end
PAUSE = 3.0  # seconds without hints after one could not be written
_COMMAND_NAME = () if redis.VERSION >= (5, 3) else ("_",)  # an argument that redis-py before 5.3 requires and ignores


class RedisTrips:
    """A connection for each thread that waits at the moment. Where one fails, the client takes over, with its retries:
    a command may then be carried out twice, as with the client alone.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._begin()
        _call_in_children(self._begin)

    def _begin(self) -> None:
        self._idle: deque[Any] = deque()

    def ask(self, *commands: Command) -> list[Any]:
        """The replies, in one trip. Raises RedisError, also where Redis refuses one of the commands."""
        try:
            replies = self._ask(commands)
        except (RedisError, OSError) as error:
            log.debug("redis is asked again", error=str(error))
            return [self._client.execute_command(*command) for command in commands]  # type: ignore[no-untyped-call]
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def _ask(self, commands: tuple[Command, ...]) -> list[Any]:
        pool = self._client.connection_pool
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = pool.get_connection(*_COMMAND_NAME)
        try:
            connection.send_packed_command(packed(commands), check_health=False)
            replies = [_reply(connection) for _ in commands]
        except BaseException:
            connection.disconnect()
            pool.release(connection)
            raise
        self._idle.append(connection)
        return replies


def packed(commands: Iterable[Command]) -> list[bytes]:
    """As they go over the wire. The client's own function also splits names of commands and long values, and costs more
    than the trip.
    """
    pieces: list[bytes] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        for argument in command:
            value = argument if isinstance(argument, bytes) else str(argument).encode()
            pieces.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return [b"".join(pieces)]


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _call_in_children(begin: Callable[[], None]) -> None:
    """After each fork, as long as its object lives: connections are the parent's, and its locks may be held."""
    method = weakref.WeakMethod(begin)
    os.register_at_fork(after_in_child=lambda: (still := method()) and still())


class CommandWriter:
    """Sends commands to Redis in order without waiting for the replies, over one connection for any number of threads.

    What was not answered on a lost connection is sent again on the next one, in the same order, so the commands must
    be safe to repeat. `pool` returns the current pool.
    """

    def __init__(self, pool: Callable[[], ConnectionPool]) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._unanswered: deque[Command] = deque()
        self._sent = 0  # of those, on this connection
        self._sent_at = 0.0
        self._connection: Any = None
        self._connection_pool: ConnectionPool | None = None

    def write(self, *commands: Command) -> None:
        """Raises when Redis cannot be reached; the commands are sent when it can be reached again."""
        with self._lock:
            self._unanswered.extend(commands)
            self._send(wait=len(self._unanswered) > UNANSWERED)

    def add(self, *commands: Command) -> None:
        """To be sent with those that are written next."""
        with self._lock:
            self._unanswered.extend(commands)

    def flush(self) -> None:
        """Wait until everything written has been executed or refused."""
        with self._lock:
            if self._unanswered:
                self._send(wait=True)

    def drop(self) -> None:
        """What was not answered is not sent again."""
        with self._lock:
            self._close()
            self._unanswered.clear()

    def _send(self, *, wait: bool) -> None:
        for is_last in (False, True):
            try:
                self._exchange(wait=wait)
            except BaseException as error:
                self._close()  # it is unknown which commands have arrived
                if is_last or not isinstance(error, RedisError | OSError):
                    raise
                log.info("commands are sent again", commands=len(self._unanswered), error=str(error))
            else:
                return

    def _exchange(self, *, wait: bool) -> None:
        now = time.monotonic()
        is_idle, self._sent_at = now - self._sent_at > IDLE, now
        self._connect(is_idle=is_idle)
        unsent = list(itertools.islice(self._unanswered, self._sent, None))
        self._sent += len(unsent)
        # A health check would take the reply to another command for its own.
        self._connection.send_packed_command(packed(unsent), check_health=False)
        while self._sent and wait:
            self._read_reply()

    def _connect(self, *, is_idle: bool) -> None:
        if self._connection is not None and not _is_connected(self._connection):
            self._close()  # its pool was closed: what was not answered goes once more
        if self._connection is None:
            self._connection_pool = self._pool()
            self._connection = self._connection_pool.get_connection(*_COMMAND_NAME)
        elif is_idle or self._sent >= READ_AT_LEAST:
            while self._sent and self._connection.can_read():
                self._read_reply()
            if self._unanswered and not self._sent and self._connection.can_read():
                raise RedisConnectionError("it was closed at the other end")

    def _read_reply(self) -> None:
        try:
            self._connection.read_response()
        except ResponseError as error:
            log.warning("redis refuses a command", command=self._unanswered[0][0], error=str(error))
        self._sent -= 1
        self._unanswered.popleft()

    def _close(self) -> None:
        connection, pool = self._connection, self._connection_pool
        self._connection, self._connection_pool, self._sent = None, None, 0
        if connection is not None and pool is not None:
            connection.disconnect()
            pool.release(connection)


def _is_connected(connection: Any) -> bool:
    known = getattr(connection, "is_connected", None)
    return connection._sock is not None if known is None else known  # noqa: SLF001 - redis-py before 5.3 has no other


class RedisHints:
    """One for each process. A child of a fork begins anew: the connection is its parent's."""

    def __init__(self, client: Redis) -> None:
        """`client`: one that does not retry, and whose timeouts are short."""
        self._client = client
        self._begin()
        _call_in_children(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._writer: CommandWriter | None = None
        self._resume_at = 0.0
        self._fails = False

    def write(self, *commands: Command, more: bool = False) -> None:
        """`more`: they are sent with the next, which follow at once."""
        with self._lock:
            if time.monotonic() < self._resume_at:
                return
            if self._writer is None:
                self._writer = CommandWriter(lambda: self._client.connection_pool)
                atexit.register(self.flush)
            if more:
                self._writer.add(*commands)
                return
            try:
                self._writer.write(*commands)
            except (RedisError, OSError) as error:
                if not self._fails:  # once for each time that Redis is away
                    log.warning("redis does not answer; locks will expire, clients will ask again", error=str(error))
                self._fails, self._resume_at = True, time.monotonic() + PAUSE
                self._writer.drop()
            else:
                self._fails = False

    def flush(self) -> None:
        """Wait until all have arrived: a process that ends with a reply unread may take back what it has sent."""
        with self._lock:
            if self._writer is None:
                return
            try:
                self._writer.flush()
            except (RedisError, OSError) as error:
                log.debug("hints not sent", error=str(error))
                self._writer.drop()
