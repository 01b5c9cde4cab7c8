"""Deletes from Redis what the bus and the live streams still say of threads that were erased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.gateways.redis_bus import fleet_stream, run_stream
from chordage.orchestrator.gateways.redis_events import live_stream, watched_key

PAGE = 1_000


class RedisErasure:
    def __init__(self, client: Redis, *, prefix: str) -> None:
        self._redis = client
        self._prefix = prefix

    def erase(self, threads: Collection[str], runs: Collection[str], turns: Collection[str]) -> Counter[str]:
        """The entries of these in the streams of the fleet, and the streams of these runs and of those that the entries
        name. Raises Unavailable.
        """
        deleted, named = Counter[str](), set(runs)
        try:
            for stream in (fleet_stream(self._prefix), f"{self._prefix}live"):
                deleted["entries"] += self._erase_entries(stream, {*threads, *turns, *named}, named)
            for run in named:
                streams = (run_stream(self._prefix, run), live_stream(self._prefix, run))
                deleted["streams"] += int(self._redis.delete(*streams) or 0)
                self._redis.zrem(watched_key(self._prefix), run)
        except RedisError as error:
            raise Unavailable(f"Redis does not delete what it has of these threads: {error}") from error
        return +deleted

    def _erase_entries(self, stream: str, names: Collection[str], runs: set[str]) -> int:
        """All of the stream is read: an entry says of which thread, run and turn it is. `runs` gets those."""
        deleted, after = 0, "-"
        while page := self._page(stream, after):
            told = [(entry, {_text(key): _text(value) for key, value in fields.items()}) for entry, fields in page]
            found = [(entry, fields) for entry, fields in told if any(value in names for value in fields.values())]
            if found:
                runs |= {fields["run"] for _, fields in found if "run" in fields}
                deleted += int(self._redis.xdel(stream, *(entry for entry, _ in found)))
            after = f"({_text(page[-1][0])}"
        return deleted

    def _page(self, stream: str, after: str) -> list[Any]:
        page: Any = self._redis.xrange(stream, min=after, count=PAGE)
        return list(page)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
