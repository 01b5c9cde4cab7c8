"""What is done to the fleet of `chaos_fleet`. Each fault has a name, lasts a while, and is over when it says so."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import psutil
from redis.exceptions import RedisError

from support.chaos_fleet import LEASE, ChaosFleet, tree
from support.waiting import until

NOTHING = (0.0, 0.0)
CLOCK_STEP = LEASE / 2 - 2  # hosts have to agree within half a lease
SLOWEST = 0.2  # seconds, each way


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultKind:
    """`strikes` holds the fault as long as it is entered. `on`: two faults on the same thing never overlap."""

    strikes: Callable[[ChaosFleet, random.Random], AbstractContextManager[str]]
    on: str
    seconds: tuple[float, float] = NOTHING
    weight: int = 1
    needs: Callable[[ChaosFleet], bool] = field(default=lambda _fleet: True)


@contextlib.contextmanager
def machine_killed(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    ready = [worker for worker in fleet.workers if worker.is_ready]
    if ready:
        victim = chance.choice(ready)
        victim.kill()
        yield victim.name
    else:
        yield "nothing was running"


@contextlib.contextmanager
def child_killed(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    children = [child for worker in fleet.workers if worker.is_ready for child in tree(worker.pid)[1:]]
    if children:
        victim = chance.choice(children)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    yield f"one of {len(children)}"


@contextlib.contextmanager
def beat_killed(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    if fleet.rig.workers["beat"].alive:
        fleet.rig.workers["beat"].kill()
    yield ""


@contextlib.contextmanager
def machine_frozen(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    ready = [worker for worker in fleet.workers if worker.is_ready]
    stopped = tree(chance.choice(ready).pid) if ready else []
    for one in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.suspend()
    try:
        yield f"{len(stopped)} processes"
    finally:
        for one in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()


@contextlib.contextmanager
def redis_killed(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    fleet.valkey.kill()
    try:
        yield "and comes back empty"
    finally:
        fleet.valkey.start()


@contextlib.contextmanager
def redis_emptied(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    with contextlib.suppress(RedisError):
        fleet.rig.redis.flushall()
    yield ""


@contextlib.contextmanager
def redis_frozen(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    with fleet.valkey.frozen():
        yield ""


@contextlib.contextmanager
def redis_full(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    _limit_redis(fleet, "1mb")
    try:
        yield ""
    finally:
        _limit_redis(fleet, "0")


def _limit_redis(fleet: ChaosFleet, memory: str) -> None:
    """Our connection may be one that an earlier fault has cut."""

    def is_limited() -> bool:
        with contextlib.suppress(RedisError):
            return bool(fleet.rig.redis.config_set("maxmemory", memory))
        return False

    until(is_limited, f"Redis takes its limit of {memory}")


@contextlib.contextmanager
def database_crashed(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    fleet.postgres.stop("immediate")
    try:
        yield ""
    finally:
        fleet.postgres.start()


@contextlib.contextmanager
def database_frozen(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    stopped = tree(fleet.postgres.pid)
    for one in reversed(stopped):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.suspend()
    try:
        yield ""
    finally:
        for one in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.resume()


@contextlib.contextmanager
def disk_full(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    """Where PostgreSQL has to create a file of its log meanwhile, it ends; its supervisor starts it again."""
    assert fleet.disk is not None
    ballast = fleet.disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    try:
        yield ""
    finally:
        ballast.unlink()
        if not fleet.postgres.running:
            fleet.postgres.start()


@contextlib.contextmanager
def network_cut(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    name, (database, redis) = chance.choice(sorted(fleet.networks.items()))
    with database.cut(), redis.cut():
        yield f"of the machine {name}"


@contextlib.contextmanager
def network_half_cut(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    name, both = chance.choice(sorted(fleet.networks.items()))
    which = chance.randrange(2)
    with both[which].cut():
        yield f"between the machine {name} and {('the database', 'Redis')[which]}"


@contextlib.contextmanager
def network_silent(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    name, both = chance.choice(sorted(fleet.networks.items()))
    which = chance.randrange(2)
    with both[which].silent():
        yield f"between the machine {name} and {('the database', 'Redis')[which]}"


@contextlib.contextmanager
def network_slow(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    name, (database, redis) = chance.choice(sorted(fleet.networks.items()))
    by = chance.uniform(0.01, SLOWEST)
    with database.slow(by), redis.slow(by):
        yield f"of the machine {name}, by {by * 1000:.0f} ms"


@contextlib.contextmanager
def clock_moved(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    by = chance.uniform(-CLOCK_STEP, CLOCK_STEP)
    fleet.clock.write_text(f"{by:.3f}")
    yield f"by {by:+.1f} s"


@contextlib.contextmanager
def messages_doubled(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    """Half of the copies come at once, the others later."""
    with _messages(fleet, doubled=chance.uniform(0.3, 1.0)) as detail:
        yield detail


@contextlib.contextmanager
def messages_lost(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:
    with _messages(fleet, lost=chance.uniform(0.1, 0.5)) as detail:
        yield detail


@contextlib.contextmanager
def _messages(fleet: ChaosFleet, **part: float) -> Iterator[str]:
    fleet.messages.write_text(json.dumps(part))
    try:
        yield ", ".join(f"{share:.0%}" for share in part.values())
    finally:
        fleet.messages.unlink()


@contextlib.contextmanager
def receiver_away(fleet: ChaosFleet, chance: random.Random) -> Iterator[str]:  # noqa: ARG001 - as all faults
    fleet.receiver.status = 503
    try:
        yield ""
    finally:
        fleet.receiver.status = 200


KINDS: Mapping[str, FaultKind] = {
    "a machine is killed": FaultKind(strikes=machine_killed, on="worker", weight=6),
    "a tool's process is killed": FaultKind(strikes=child_killed, on="worker", weight=3),
    "the beat is killed": FaultKind(strikes=beat_killed, on="beat"),
    "a machine is frozen": FaultKind(strikes=machine_frozen, on="worker", seconds=(2.0, 1.5 * LEASE), weight=2),
    "Redis is killed": FaultKind(strikes=redis_killed, on="redis", seconds=(0.5, 3.0)),
    "Redis is emptied": FaultKind(strikes=redis_emptied, on="redis", weight=2),
    "Redis is frozen": FaultKind(strikes=redis_frozen, on="redis", seconds=(1.0, 10.0)),
    "Redis is full": FaultKind(strikes=redis_full, on="redis", seconds=(1.0, 8.0)),
    "the database crashes": FaultKind(strikes=database_crashed, on="database", seconds=(0.1, 3.0)),
    "the database is frozen": FaultKind(strikes=database_frozen, on="database", seconds=(1.0, 10.0)),
    "the disk is full": FaultKind(
        strikes=disk_full, on="database", seconds=(1.0, 6.0), needs=lambda fleet: fleet.disk is not None
    ),
    "the network is cut": FaultKind(strikes=network_cut, on="network", seconds=(1.0, 12.0)),
    "half of the network is cut": FaultKind(strikes=network_half_cut, on="network", seconds=(1.0, 12.0)),
    "the network is silent": FaultKind(strikes=network_silent, on="network", seconds=(1.0, 12.0)),
    "the network is slow": FaultKind(strikes=network_slow, on="network", seconds=(2.0, 15.0)),
    "a clock is moved": FaultKind(strikes=clock_moved, on="clock"),
    "messages are doubled": FaultKind(strikes=messages_doubled, on="messages", seconds=(1.0, 10.0), weight=2),
    "messages are lost": FaultKind(strikes=messages_lost, on="messages", seconds=(1.0, 6.0)),
    "a receiver is away": FaultKind(strikes=receiver_away, on="receiver", seconds=(0.5, 4.0)),
}
