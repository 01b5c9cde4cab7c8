"""The bus in Redis: streams of facts, and a cursor that says which bus they belong to and how far they go.

Entries and cursor are written by one script, so they never differ: entries at or before the cursor's position are
skipped, and where the cursor is not the one the writer expects, nothing is written. A Redis that was emptied has no
cursor; one that came back with an older state has one with an older position. Both show before an entry is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.bus import BusCursor, BusEntry, BusRules
from chordage.orchestrator.core.contents import Cipher, CipherContext, encrypt_json
from chordage.orchestrator.core.errors import Unavailable

# KEYS: the cursor, the fleet's stream, those of runs. ARGV: bus, generation, from, to, entries kept of the fleet's
# stream and of each other, seconds; then all entries as one JSON text, each as position, number of its key, id, values:
# as arguments they would be some hundred a turn, each encoded by itself.
PUBLISH = """
local cursor = redis.call('HMGET', KEYS[1], 'bus', 'generation', 'position')
if cursor[1] ~= ARGV[1] or cursor[2] ~= ARGV[2] or tonumber(cursor[3]) < tonumber(ARGV[3]) then return cursor end
local reached = tonumber(cursor[3])
for _, entry in ipairs(cjson.decode(ARGV[8])) do
  if entry[1] > reached then
    local keep = entry[2] == 2 and ARGV[5] or ARGV[6]
    local done = redis.pcall('XADD', KEYS[entry[2]], 'MAXLEN', '~', keep, entry[3], unpack(entry[4]))
    if type(done) == 'table' and done.err and not string.find(done.err, 'equal or smaller') then return done end
  end
end
for run = 3, #KEYS do redis.call('EXPIRE', KEYS[run], ARGV[7]) end
if tonumber(ARGV[4]) > reached then redis.call('HSET', KEYS[1], 'position', ARGV[4]) end
return redis.call('HMGET', KEYS[1], 'bus', 'generation', 'position')
"""


class RedisBus:
    def __init__(self, client: Redis, *, prefix: str, rules: BusRules, cipher: Cipher | None = None) -> None:
        """`cipher`: the data of entries is encrypted, for their thread."""
        self._redis = client
        self._cipher = cipher
        self._cursor_key = f"{prefix}bus:mark"
        self._fleet = fleet_stream(prefix)
        self._runs = run_stream(prefix, "")
        self._rules = rules
        self._script = client.register_script(PUBLISH)

    def cursor(self) -> BusCursor | None:
        with _as_unavailable():
            values: Any = self._redis.hmget(self._cursor_key, "bus", "generation", "position")
        return _read(values)

    def begin(self, cursor: BusCursor) -> None:
        """The old cursor goes first and the new one comes last: a process that still writes meanwhile is refused."""
        with _as_unavailable():
            self._redis.delete(self._cursor_key)
            for names in _in_hundreds(self._redis.scan_iter(match=f"{_escaped(self._runs)}*", count=1000)):
                self._redis.unlink(*names)
            self._redis.delete(self._fleet)
            fields: dict[Any, Any] = {"bus": cursor.bus, "generation": cursor.generation, "position": cursor.position}
            self._redis.hset(self._cursor_key, mapping=fields)

    def publish(self, cursor: BusCursor, to: int, entries: Sequence[BusEntry]) -> BusCursor | None:
        runs = list(dict.fromkeys(entry.run for entry in entries if entry.run is not None))
        keys = [self._cursor_key, self._fleet, *(self._runs + run for run in runs)]
        number: dict[str | None, int] = {None: 2, **{run: place for place, run in enumerate(runs, 3)}}
        rules = self._rules
        args: list[str | int] = [
            cursor.bus, cursor.generation, cursor.position, to, rules.keep, rules.keep_of_run, rules.keep_seconds,
            json.dumps(
                [(entry.position, number[entry.run], entry.id, self._fields(entry)) for entry in entries],
                ensure_ascii=False,
            ),
        ]  # fmt: skip
        with _as_unavailable():
            values: Any = self._script(keys=keys, args=args)
        return _read(values)

    def _fields(self, entry: BusEntry) -> list[str]:
        if self._cipher is None:
            return entry.fields
        of = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
        of["data"] = encrypt_json(self._cipher, of["data"], CipherContext("bus", "data", of["thread"]))
        return [text for field in of.items() for text in field]


def fleet_stream(prefix: str) -> str:
    return f"{prefix}bus"


def run_stream(prefix: str, run_id: str) -> str:
    return f"{prefix}bus:run:{run_id}"


def _read(values: list[Any]) -> BusCursor | None:
    bus, generation, position = (value.decode() if isinstance(value, bytes) else value for value in values)
    if bus is None or generation is None or position is None:
        return None
    return BusCursor(bus=bus, generation=int(generation), position=int(position))


def _escaped(prefix: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in prefix)


def _in_hundreds(names: Iterator[Any]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for name in names:
        batch.append(name)
        if len(batch) == 100:
            yield batch
            batch = []
    if batch:
        yield batch


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise Unavailable(f"the bus in Redis does not take anything: {error}") from error
