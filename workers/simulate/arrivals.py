"""When messages come, as each source's pattern has it. The same seed gives the same times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.workers.simulate.scenario import Source

DAY = 86_400.0
_ORIGIN = {Group.CHAT: Origin.CHAT, Group.TASK: Origin.TASK, Group.CHORE: Origin.CHORE, Group.WILL: Origin.WILL}


def times(source: Source, seconds: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which a message of this source comes, in order."""
    rng = random.Random(f"{seed}:{source.name}")
    match source.pattern:
        case "steady":
            found = _every(1 / source.per_second, 1)
        case "burst":
            found = _every(source.burst / source.per_second, source.burst)
        case "poisson":
            found = _poisson(source.per_second, rng)
        case "daily":
            found = _daily(source, rng)
    for at in found:
        if at >= seconds:
            return
        yield at


def _every(seconds: float, size: int) -> Iterator[float]:
    at = 0.0
    while True:
        for _ in range(size):
            yield at
        at += seconds


def _poisson(per_second: float, rng: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += rng.expovariate(per_second)
        yield at


def _daily(source: Source, rng: random.Random) -> Iterator[float]:
    """A wave over 24 hours that begins at its lowest. Of what comes at the rate of the peak, a part is dropped."""
    height = min(source.peak - 1.0, 1.0)
    highest = source.per_second * (1 + height)
    for at in _poisson(highest, rng):
        rate = source.per_second * (1 - height * math.cos(2 * math.pi * at / DAY))
        if rng.random() < rate / highest:
            yield at


@dataclass(frozen=True, slots=True)
class Work:
    """What a turn makes to do: seconds of each model call, and of each tool call of the rounds between them."""

    source: str
    group: Group
    tenant: str
    models: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]


class Mouth:
    """Makes the messages of one source, one after the other."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source = source
        self._rng = random.Random(f"{seed}:{source.name}:work")
        self._count = 0

    def next(self) -> tuple[TurnRequest, Work]:
        source, number = self._source, self._count
        self._count += 1
        tenant = f"{source.name}-{number % source.tenants}"
        on = f"{source.name}-{number % source.threads if source.threads else number}"
        agent = on if source.group is Group.WILL else source.name  # a will is one for each agent
        request = TurnRequest(
            message=Message(
                origin=_ORIGIN[source.group],
                channel="simulated" if source.group is Group.CHAT else None,
                sender=Sender.GUEST if source.group is Group.CHAT else Sender.SELF,
                thread_id=f"{source.group}:{on}",
                text="simulated",
            ),
            agent=agent,
            tenant=tenant,
            source="simulation",
        )
        return request, self._work(tenant)

    def _work(self, tenant: str) -> Work:
        source = self._source
        rounds = self._how_many(source.rounds)
        return Work(
            source=source.name,
            group=source.group,
            tenant=tenant,
            models=tuple(self._seconds(source.model_seconds) for _ in range(rounds + 1)),
            rounds=tuple(tuple(self._seconds(source.tool_seconds) for _ in range(source.calls)) for _ in range(rounds)),
        )

    def _how_many(self, mean: float) -> int:
        """A whole number with this mean: the next below or above."""
        below = int(mean)
        return below + (self._rng.random() < mean - below)

    def _seconds(self, mean: float) -> float:
        return self._rng.expovariate(1 / mean) if self._source.spread == "exponential" and mean else mean
