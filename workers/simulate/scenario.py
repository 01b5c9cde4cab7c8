"""The scenario of a simulation, read from a TOML file: how many messages come when, their work, and the fleet."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.agent import Effect, Placement
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.text import field_fault

DAY = 86_400.0
_ORIGIN = {Group.CHAT: Origin.CHAT, Group.TASK: Origin.TASK, Group.CHORE: Origin.CHORE, Group.WILL: Origin.WILL}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FleetSize(_Part):
    """Slots of all workers together. A tool call takes a tool slot if it leaves its process."""

    turn_slots: int = Field(default=128, ge=1)
    tool_slots: int = Field(default=32, ge=1)
    reserve: int = Field(default=0, ge=0)  # turn slots, and as many tool slots, for chat only

    @model_validator(mode="after")
    def _leaves_something(self) -> FleetSize:
        if self.reserve >= min(self.turn_slots, self.tool_slots):
            raise ValueError(f"reserve ({self.reserve}) leaves nothing for the other groups: lower it")
        return self


class DatabaseSpeed(_Part):
    """The times of that fleet's database. The one the simulation runs on is not measured for this."""

    commit_ms: float = Field(default=2.0, gt=0)  # from the lock of a row to the end of its commit


class MessageSource(_Part):
    """A sender of messages, and the work that each of them takes."""

    name: str
    group: Group
    pattern: Literal["poisson", "steady", "burst", "daily"] = "poisson"
    per_second: float = Field(default=1.0, gt=0)  # of a daily pattern: on average
    burst: int = Field(default=100, ge=1)  # messages of one burst; bursts come so often that per_second is kept
    peak: float = Field(default=3.0, ge=1)  # of a daily pattern: how many times the average the busiest hour has
    tenants: int = Field(default=1, ge=1)
    threads: int = Field(default=0, ge=0)  # how many threads they come on; 0: each on its own
    rounds: float = Field(default=1.0, ge=0)  # of tool calls, on average
    calls: int = Field(default=4, ge=1)  # of a round
    model_seconds: float = Field(default=2.0, ge=0)
    tool_seconds: float = Field(default=0.5, ge=0)
    effect: Effect = Effect.UNSAFE  # of the tools, as where a tool does not say
    placement: Placement = Placement.AUTO
    spread: Literal["exponential", "fixed"] = "exponential"  # of the seconds


class Scenario(_Part):
    seed: int = 1
    seconds: float = Field(default=600.0, gt=0)  # of virtual time in which messages come
    drain: float = Field(default=3600.0, ge=0)  # ... and how long afterwards what is left is worked off, at most
    budgets: dict[Group, int] = Field(default_factory=dict)
    fleet: FleetSize = FleetSize()
    database: DatabaseSpeed = DatabaseSpeed()
    sources: tuple[MessageSource, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_differ(self) -> Scenario:
        names = [source.name for source in self.sources]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two sources are called {twice!r}: give one of them another name")
        return self

    @property
    def all_budgets(self) -> dict[Group, int]:
        return {**DEFAULT_BUDGETS, **self.budgets}

    @property
    def expected(self) -> float:
        """How many messages will come, about."""
        return sum(source.per_second for source in self.sources) * self.seconds


def read(path: Path) -> Scenario:
    try:
        return Scenario.model_validate(bounds.loads_toml(path.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ConfigError(f"{path}: {place}: {field_fault(first)}") from error


def arrival_times(source: MessageSource, seconds: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which a message of this source comes, in order."""
    rng = random.Random(f"{seed}:{source.name}")
    match source.pattern:
        case "steady":
            moments = _every(1 / source.per_second, 1)
        case "burst":
            moments = _every(source.burst / source.per_second, source.burst)
        case "poisson":
            moments = _poisson(source.per_second, rng)
        case "daily":
            moments = _daily(source, rng)
    for at in moments:
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


def _daily(source: MessageSource, rng: random.Random) -> Iterator[float]:
    """A wave over 24 hours that begins at its lowest. Messages come at the rate of the peak, and a part is dropped."""
    height = min(source.peak - 1.0, 1.0)
    highest = source.per_second * (1 + height)
    for at in _poisson(highest, rng):
        rate = source.per_second * (1 - height * math.cos(2 * math.pi * at / DAY))
        if rng.random() < rate / highest:
            yield at


@dataclass(frozen=True, slots=True)
class TurnWork:
    """The work of one turn: seconds of each model call, and of each tool call of the rounds between them."""

    source: str
    group: Group
    tenant: str
    models: tuple[float, ...]
    rounds: tuple[tuple[float, ...], ...]
    effect: Effect
    placement: Placement


class MessageGenerator:
    """The messages of one source, in order."""

    def __init__(self, source: MessageSource, seed: int) -> None:
        self._source = source
        self._rng = random.Random(f"{seed}:{source.name}:work")
        self._count = 0

    def next(self) -> tuple[TurnRequest, TurnWork]:
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

    def _work(self, tenant: str) -> TurnWork:
        source = self._source
        rounds = self._whole_number(source.rounds)
        return TurnWork(
            source=source.name,
            group=source.group,
            tenant=tenant,
            models=tuple(self._seconds(source.model_seconds) for _ in range(rounds + 1)),
            rounds=tuple(tuple(self._seconds(source.tool_seconds) for _ in range(source.calls)) for _ in range(rounds)),
            effect=source.effect,
            placement=source.placement,
        )

    def _whole_number(self, mean: float) -> int:
        """A whole number with this mean: the next below or above."""
        below = int(mean)
        return below + (self._rng.random() < mean - below)

    def _seconds(self, mean: float) -> float:
        return self._rng.expovariate(1 / mean) if self._source.spread == "exponential" and mean else mean
