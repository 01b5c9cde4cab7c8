"""What a Redis or Valkey server says of itself: its version, memory, clients, persistence and clock.

Settings that may lose messages are read where the server lets us: a hosted one often refuses CONFIG.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from redis import Redis
from redis.exceptions import ResponseError


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisState:
    name: str  # Redis or Valkey
    version: str
    role: str  # master or slave
    policy: str  # what is dropped when the memory is full
    memory: int  # bytes in use
    most_memory: int  # 0: no limit
    clients: int
    most_clients: int  # 0: not known
    has_log: bool  # appendonly
    has_snapshots: bool | None  # None: the server does not say
    write_failures: tuple[str, ...]  # what could not be written to disk
    now: datetime


def read_state(client: Redis) -> RedisState:
    said = cast("Mapping[str, Any]", client.info())
    seconds, micros = client.time()
    saved = _snapshots(client)
    failed = {"rdb_last_bgsave_status": "snapshot", "aof_last_write_status": "append-only file"}
    return RedisState(
        name="Valkey" if "valkey_version" in said else "Redis",
        version=str(said.get("valkey_version") or said["redis_version"]),
        role=str(said["role"]),
        policy=str(said.get("maxmemory_policy", "noeviction")),
        memory=int(said["used_memory"]),
        most_memory=int(said.get("maxmemory", 0)),
        clients=int(said["connected_clients"]),
        most_clients=int(said.get("maxclients", 0)),
        has_log=bool(said.get("aof_enabled")),
        has_snapshots=saved,
        write_failures=tuple(what for field, what in failed.items() if said.get(field, "ok") != "ok"),
        now=datetime.fromtimestamp(seconds + micros / 1e6, UTC),
    )


def _snapshots(client: Redis) -> bool | None:
    try:
        answer = cast("Mapping[str, str]", client.config_get("save"))
    except ResponseError:
        return None
    return bool(answer.get("save"))


def queue_lengths(client: Redis, queues: Collection[str], *, prefix: str) -> dict[str, int]:
    """How many messages wait in each of Celery's queues, in one trip."""
    with client.pipeline(transaction=False) as trip:
        for queue in queues:
            trip.llen(prefix + queue)
        return dict(zip(queues, trip.execute(), strict=True))
