"""Streams in Redis that are watched: one connection and one blocking read for the whole process.

What comes in is handed on as it is; entries of the bus say that there is something to read in the database, and live
entries are notes. The set of streams changes while the read blocks, so a control stream of this process is always among
them: an entry there ends the read. While Redis is away the read is tried again, and `on_link` says so.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.contents import Cipher, decrypt_json
from chordage.orchestrator.core.errors import WrongKey
from chordage.orchestrator.gateways.redis_bus import fleet_stream, run_stream
from chordage.orchestrator.gateways.redis_events import live_context, live_stream, watched_key

log = structlog.get_logger()

BLOCK = 5.0  # seconds that one read waits
WATCH_SECONDS = 60.0  # so long a run counts as watched after this process has said so
RENEW_EVERY = 20.0
AT_ONCE = 200  # entries of a stream in one read
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds between attempts while Redis is away


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamNote:
    """A live entry of a run, or an entry of the bus, which is only a sign: it has no data."""

    run_id: str
    kind: str
    is_of_bus: bool = False
    thread_id: str = ""
    turn_id: str = ""
    row: int = 0  # of an entry of the bus: of the journal, where the cursor of the bus is in a moment
    data: Mapping[str, Any] = field(default_factory=dict)


class RedisRunStreams:
    """`on_notes` gets what one read has brought, `on_link` whether Redis answers. Both are called in a thread."""

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str,
        on_notes: Callable[[list[StreamNote]], None],
        on_link: Callable[[bool], None],
        cipher: Cipher | None = None,
    ) -> None:
        """`client`: with timeouts longer than `BLOCK`. `cipher`: decrypts live entries."""
        self._redis = client
        self._cipher = cipher
        self._prefix = prefix
        self._on_notes = on_notes
        self._on_link = on_link
        self._control = f"{prefix}streams:{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}  # runs, each with the position from which the bus is read
        self._fleet: int | None = None
        self._last: dict[str, str] = {}  # of each stream
        self._renewed: dict[str, float] = {}  # runs
        self._thread: threading.Thread | None = None
        self._stopping = False

    def watch(self, run_id: str, position: int) -> None:
        """From the next read on: `wake` begins one now."""
        with self._lock:
            self._wanted.setdefault(run_id, position)

    def unwatch(self, run_id: str) -> None:
        with self._lock:
            self._wanted.pop(run_id, None)

    def watch_fleet(self, position: int) -> None:
        with self._lock:
            self._fleet = position if self._fleet is None else self._fleet

    def unwatch_fleet(self) -> None:
        with self._lock:
            self._fleet = None

    def stop(self) -> None:
        with self._lock:
            self._stopping, thread = True, self._thread
        if thread is not None:
            self.wake()
            thread.join(timeout=BLOCK)

    def wake(self) -> None:
        """It waits for Redis."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._read_for_ever, name="chordage-streams", daemon=True)
                thread.start()
                self._thread = thread
                return
        with contextlib.suppress(RedisError, OSError):  # without Redis nothing blocks
            self._redis.xadd(self._control, {"wake": "1"}, maxlen=1)

    def _read_for_ever(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                self._renew()
                self._hand_on(self._read())
            except (RedisError, OSError) as error:
                if not failures:
                    log.warning("streams wait for redis", error=str(error))
                    self._on_link(False)
                self._renewed.clear()
                time.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
            else:
                if failures:
                    self._on_link(True)
                failures = 0
        with contextlib.suppress(RedisError, OSError):
            self._redis.delete(self._control)

    def _renew(self) -> None:
        """Say which runs are watched: the new ones at once, the others long before the time is over."""
        now = time.monotonic()
        with self._lock:
            wanted = list(self._wanted)
        self._renewed = {run: at for run, at in self._renewed.items() if run in set(wanted)}
        due = [run for run in wanted if now - self._renewed.get(run, -RENEW_EVERY) >= RENEW_EVERY]
        if due:
            until = time.time() + WATCH_SECONDS
            self._redis.zadd(watched_key(self._prefix), dict.fromkeys(due, until))
            self._redis.expire(self._control, int(10 * WATCH_SECONDS))
            self._renewed |= dict.fromkeys(due, now)

    def _read(self) -> list[tuple[str, list[tuple[str, dict[str, str]]]]]:
        streams: dict[Any, Any] = dict(self._streams())
        entries: Any = self._redis.xread(streams, count=AT_ONCE, block=int(BLOCK * 1000))
        return entries or []

    def _streams(self) -> dict[str, str]:
        with self._lock:
            wanted, fleet = dict(self._wanted), self._fleet
        first = {self._control: "0"}
        for run_id, position in wanted.items():
            first[live_stream(self._prefix, run_id)] = "0"
            first[run_stream(self._prefix, run_id)] = _behind(position)
        if fleet is not None:
            first[fleet_stream(self._prefix)] = _behind(fleet)
        self._last = {name: self._last.get(name, start) for name, start in first.items()}
        return self._last

    def _hand_on(self, read: Collection[tuple[str, list[tuple[str, dict[str, str]]]]]) -> None:
        notes: list[StreamNote] = []
        for name, entries in read:
            self._last[name] = entries[-1][0]
            if name != self._control:
                notes += [note for id_, fields in entries if (note := _note(id_, fields, self._cipher)) is not None]
        if notes:
            self._on_notes(notes)


def _behind(position: int) -> str:
    return f"{position}-99"


def _note(id_: str, fields: Mapping[str, str], cipher: Cipher | None) -> StreamNote | None:
    """None: an entry that this version cannot read, or for which it has no key. It may be lost, as any live entry."""
    kind, run_id = fields.get("kind"), fields.get("run", "")
    if kind is None:
        return None
    if "at" in fields:  # of the bus, where every entry has its time
        thread_id, turn_id = fields.get("thread", ""), fields.get("turn", "")
        row = int(id_.partition("-")[0])
        return StreamNote(run_id=run_id, kind=kind, is_of_bus=True, thread_id=thread_id, turn_id=turn_id, row=row)
    try:
        data = json.loads(decrypt_json(cipher, fields["data"], live_context(run_id)))
    except (KeyError, ValueError, WrongKey):
        return None
    return StreamNote(run_id=run_id, kind=kind, data=data) if isinstance(data, dict) else None
