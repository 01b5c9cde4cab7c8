"""Live events in Redis: a stream for each run, one for the fleet, and a message to those who wait for a turn.

Events may be lost by design; the journal has the truth. A thread sends all that have come in since it last sent, in one
round trip: a stage never waits for Redis, and under load the events of many runs share the trip. That a turn is done
needs no thread where no event waits to be sent before it.

Events of a run are sent only while it is watched. Watchers say so in a sorted set, and a process that has events
reads it once a second at most. So an event costs nothing while it is not watched, and a watcher may miss those of its
first second: it reads what was before from the database, as it has to anyway.

Only the text of a reply that is still being made, and the reasoning before it, are nowhere else. So a piece that does
not continue what was sent is sent with all that comes before it: the first of a text, the first after a run began to be
watched, the first after Redis was away, and one in `WHOLE_EVERY`, because a stream keeps its last entries only.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.contents import Cipher, CipherContext, encrypt_json
from chordage.orchestrator.gateways.redis_direct import RedisHints

log = structlog.get_logger()

KEEP = 1_000  # entries of a stream
KEEP_SECONDS = 3_600
GATHER = 0.025  # seconds
MOST_WAITING = 20_000  # events not yet sent; beyond that the newest is dropped
AT_ONCE = 500
FOR_ALL = frozenset({"run.started", "run.finished"})
READ_WATCHERS_EVERY = 1.0  # seconds
WHOLE_EVERY = 200  # pieces of a text
_PIECES = frozenset({"model.delta", "model.reasoning"})
EVERY_RUN = "*"  # what a watcher of the whole fleet watches

# KEYS: the fleet's stream, those of runs. ARGV: entries as one JSON text, each the number of its key and its values;
# entries kept of the fleet's stream and of each other, seconds; then the channels of turns that are done.
# One that cannot be written does not stop the others.
SEND = """
local failed
for _, entry in ipairs(cjson.decode(ARGV[1])) do
  local keep = entry[1] == 1 and ARGV[2] or ARGV[3]
  local done = redis.pcall('XADD', KEYS[entry[1]], 'MAXLEN', '~', keep, '*', unpack(entry[2]))
  if type(done) == 'table' and done.err then failed = done end
end
for run = 2, #KEYS do redis.call('EXPIRE', KEYS[run], ARGV[4]) end
for turn = 5, #ARGV do redis.call('PUBLISH', ARGV[turn], '1') end
return failed
"""

_Event = tuple[str, str, dict[str, Any]]  # run, kind, data


@dataclass(slots=True)
class _SentText:
    """What was sent of the reply that a run is making."""

    of: tuple[str, int, int]  # the kind, the step and the attempt
    length: int
    pieces: int = 0  # since all of it was sent


class RedisEvents:
    def __init__(self, client: Redis, hints: RedisHints, *, prefix: str, cipher: Cipher | None = None) -> None:
        """`cipher`: the data of events is encrypted, for their run."""
        self._redis = client
        self._cipher = cipher
        self._hints = hints
        self._prefix = prefix
        self._sender: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()
        self._script = client.register_script(SEND)
        self._watched = WatchedRuns(client, prefix=prefix)
        self._begin()

    def _begin(self) -> None:
        """A fork starts anew: the parent sends its own events, and its locks may be in any state."""
        self._waiting: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._arrived = threading.Event()
        self._urgent = threading.Event()
        self._sending = threading.Lock()
        self._sent: dict[str, _SentText] = {}

    def emit(self, run_id: str, kind: str, **data: Any) -> None:
        if self._watched.may_have(run_id):
            self._put((run_id, kind, data))

    def turn_done(self, turn_id: str) -> None:
        """After the events of the turn: of those, each is in the queue, or is being sent, or has been sent."""
        if self._waiting.empty() and not self._sending.locked():
            self._hints.write(("PUBLISH", done_channel(self._prefix, turn_id), "1"))
        else:
            self._put(("", "turn.done", {"turn": turn_id}))
            self._hints.write()

    def _put(self, event: _Event) -> None:
        if self._sender is None or self._pid != os.getpid():
            with self._starting:
                if self._sender is None or self._pid != os.getpid():
                    self._start()
        if self._waiting.qsize() < MOST_WAITING:
            self._waiting.put(event)
            if not self._arrived.is_set():
                self._arrived.set()
            if event[1] == "turn.done":
                self._urgent.set()
        else:
            log.warning("live event dropped", kind=event[1])

    def flush(self) -> None:
        """Send what is still waiting: a short command may end before its thread sends."""
        while self._pid == os.getpid():
            try:
                self._send_some()
            except RedisError as error:
                log.debug("live events not sent", error=str(error))
                return
            if self._waiting.empty():
                return

    def _start(self) -> None:
        if self._pid:
            self._begin()
        self._pid = os.getpid()
        atexit.register(self.flush)
        self._sender = threading.Thread(target=self._send_for_ever, name="chordage-events", daemon=True)
        self._sender.start()

    def _send_for_ever(self) -> None:
        while True:
            self._wait()
            try:
                self._send_some()
            except Exception as error:  # a closed client fails in ways of its own; this thread stays
                log.warning("live events not sent", error=repr(error))
                time.sleep(0.5)

    def _wait(self) -> None:
        """Gather for a moment, unless a client waits for an event. This thread sleeps meanwhile: woken by each event,
        it would take turns with the threads that emit them.
        """
        if self._waiting.empty():
            self._arrived.clear()
            if self._waiting.empty():  # else one arrived in between
                self._arrived.wait()
        self._urgent.wait(GATHER)
        self._urgent.clear()

    def _send_some(self) -> None:
        """Events stay in the queue until they are sent: the process may end while this thread waits."""
        with self._sending:
            batch: list[_Event] = []
            while len(batch) < AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get())
            if batch:
                self._send(batch)

    def _send(self, batch: list[_Event]) -> None:
        done = [done_channel(self._prefix, data["turn"]) for _, kind, data in batch if kind == "turn.done"]
        news = [event for event in batch if event[1] != "turn.done"]
        if news:
            self._watched.read_when_due()
            for run_id in [event[0] for event in news if not self._watched.has(event[0])]:
                self._sent.pop(run_id, None)
            news = [event for event in news if self._watched.has(event[0])]
        if news:
            self._send_news(news, done)
        elif done:
            with self._redis.pipeline(transaction=False) as pipe:
                for channel in done:
                    pipe.publish(channel, "1")
                pipe.execute()

    def _send_news(self, news: list[_Event], done: list[str]) -> None:
        runs = list(dict.fromkeys(run_id for run_id, _, _ in news))
        number = {run_id: place for place, run_id in enumerate(runs, 2)}
        for_all = FOR_ALL if self._watched.has(EVERY_RUN) else frozenset()
        entries = []
        for run_id, kind, data in news:
            shown = self._continued(run_id, kind, data) if kind in _PIECES else data
            if kind == "model.replied":
                self._sent.pop(run_id, None)
            values = _values(run_id, kind, shown, self._cipher)
            entries += [(place, values) for place in (number[run_id], *((1,) if kind in for_all else ()))]
        keys = [f"{self._prefix}live", *(live_stream(self._prefix, run_id) for run_id in runs)]
        try:
            self._script(keys=keys, args=[json.dumps(entries), 10 * KEEP, KEEP, KEEP_SECONDS, *done])
        except BaseException:
            self._sent.clear()
            raise
        finally:
            self._forget_others(frozenset(runs))

    def _continued(self, run_id: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """A piece of a text; where it would leave a gap, all of the text, with the reasoning before it."""
        so_far, thought = data.get("so_far"), data.get("thought")
        piece = {name: value for name, value in data.items() if name not in {"so_far", "thought"}}
        if so_far is None:
            return piece
        of, offset, end = (kind, data["step"], data["attempt"]), data["offset"], data["offset"] + len(data["text"])
        known = self._sent.get(run_id)
        if known is not None and known.of == of and known.length == offset and known.pieces < WHOLE_EVERY:
            known.length, known.pieces = end, known.pieces + 1
            return piece
        self._sent[run_id] = _SentText(of=of, length=end)
        before = {} if thought is None else {"reasoning": thought()}
        return {**piece, "offset": 0, "text": so_far(end), **before}

    def _forget_others(self, sent: frozenset[str]) -> None:
        """Of runs that are not watched any more, or have ended, nothing is kept."""
        for run_id in [run for run in self._sent if run not in sent and not self._watched.has(run)]:
            del self._sent[run_id]


class WatchedRuns:
    """Which runs are watched, as this process has last read it."""

    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._key = watched_key(prefix)
        self._runs: frozenset[str] = frozenset()
        self._due = 0.0

    def may_have(self, run_id: str) -> bool:
        """True also when it is time to read again."""
        return time.monotonic() >= self._due or self.has(run_id)

    def has(self, run_id: str) -> bool:
        runs = self._runs
        return run_id in runs or EVERY_RUN in runs

    def read_when_due(self) -> None:
        """Without Redis no run is watched."""
        if time.monotonic() < self._due:
            return
        now = time.time()
        members: list[Any] = []
        try:
            members = list(self._redis.zrange(self._key, 0, -1, withscores=True))
            if any(until < now for _, until in members):
                self._redis.zremrangebyscore(self._key, "-inf", now)
        except RedisError as error:
            log.debug("it is not known who watches", error=str(error))
        self._runs = frozenset(_text(run) for run, until in members if until >= now)
        self._due = time.monotonic() + READ_WATCHERS_EVERY


def watch(client: Redis, run_id: str, seconds: float, *, prefix: str) -> None:
    """Have the events of this run sent for so long. `EVERY_RUN`: those of all runs, and the stream of the fleet."""
    client.zadd(watched_key(prefix), {run_id: time.time() + seconds})


def watched_key(prefix: str) -> str:
    return f"{prefix}watched"


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _values(run_id: str, kind: str, data: dict[str, Any], cipher: Cipher | None) -> list[str]:
    fact = str(int(kind not in {*_PIECES, "model.reset"}))
    text = encrypt_json(cipher, json.dumps(data, default=str), live_context(run_id))
    return ["kind", kind, "run", run_id, "fact", fact, "data", text]


def live_context(run_id: str) -> CipherContext:
    return CipherContext("live", "data", run_id)


def live_stream(prefix: str, run_id: str) -> str:
    return f"{prefix}live:{run_id}"


def done_channel(prefix: str, turn_id: str) -> str:
    return f"{prefix}done:{turn_id}"
