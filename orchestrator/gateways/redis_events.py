"""Live news in Redis: a stream per run, one for the fleet, and a word to whoever waits for a turn.

News is lossy by design. It is handed to a thread that sends whatever has come in since it last sent, in one round
trip: a stage never waits for Redis, and under load the news of many runs share the trip. The journal has all that is
true.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

log = structlog.get_logger()

KEEP = 1_000  # entries of a stream
KEEP_SECONDS = 3_600
GATHER = 0.025  # seconds
WAITING = 20_000  # news not yet sent; beyond that the newest is dropped


class RedisEvents:
    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix
        self._news: queue.SimpleQueue[tuple[str, str, dict[str, Any]]] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()

    def emit(self, run_id: str, kind: str, **data: Any) -> None:
        self._put((run_id, kind, data))

    def turn_done(self, turn_id: str) -> None:
        self._put(("", "turn.done", {"turn": turn_id}))

    def _put(self, news: tuple[str, str, dict[str, Any]]) -> None:
        if self._sender is None or self._pid != os.getpid():
            with self._starting:
                if self._sender is None or self._pid != os.getpid():
                    self._start()
        if self._news.qsize() < WAITING:
            self._news.put(news)
        else:
            log.warning("live news dropped", kind=news[1])

    def flush(self) -> None:
        """Send what is still waiting: a short command ends before its thread has come to it."""
        left = []
        while not self._news.empty():
            left.append(self._news.get())
        if left and self._pid == os.getpid():
            try:
                self._send(left)
            except RedisError as error:
                log.debug("live news not sent", count=len(left), error=str(error))

    def _start(self) -> None:
        self._pid = os.getpid()
        atexit.register(self.flush)
        self._sender = threading.Thread(target=self._send_for_ever, name="chordage-events", daemon=True)
        self._sender.start()

    def _send_for_ever(self) -> None:
        while True:
            batch = self._gather()
            try:
                self._send(batch)
            except RedisError as error:
                log.warning("live news not sent", count=len(batch), error=str(error))
                time.sleep(0.5)

    def _gather(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Everything that comes within a moment, or at once what somebody waits for."""
        batch = [self._news.get()]
        until = time.monotonic() + GATHER
        while batch[-1][1] != "turn.done" and len(batch) < 500:
            try:
                batch.append(self._news.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _send(self, batch: list[tuple[str, str, dict[str, Any]]]) -> None:
        lasting: set[str] = set()
        with self._redis.pipeline(transaction=False) as pipe:
            for run_id, kind, data in batch:
                if kind == "turn.done":
                    pipe.publish(done_channel(self._prefix, data["turn"]), "1")
                    continue
                entry: dict[Any, Any] = {
                    "kind": kind,
                    "run": run_id,
                    "fact": str(int(kind != "model.delta")),
                    "data": json.dumps(data),
                }
                stream = f"{self._prefix}live:{run_id}"
                pipe.xadd(stream, entry, maxlen=KEEP, approximate=True)
                lasting.add(stream)
                if kind in {"run.started", "run.finished"}:
                    pipe.xadd(f"{self._prefix}live", entry, maxlen=10 * KEEP, approximate=True)
            for stream in lasting:
                pipe.expire(stream, KEEP_SECONDS)
            pipe.execute()


def done_channel(prefix: str, turn_id: str) -> str:
    return f"{prefix}done:{turn_id}"
