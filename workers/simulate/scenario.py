"""What is simulated: who sends how much, what the work takes, and what fleet is there. Read from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chordage.orchestrator.core import bounds
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fleet(_Part):
    """Slots of all workers together. A model call takes a turn slot, a tool call a tool slot."""

    turn_slots: int = Field(default=128, ge=1)
    tool_slots: int = Field(default=32, ge=1)
    reserve: int = Field(default=0, ge=0)  # turn slots, and as many tool slots, that serve chat alone

    @model_validator(mode="after")
    def _leaves_something(self) -> Fleet:
        if self.reserve >= min(self.turn_slots, self.tool_slots):
            raise ValueError(f"reserve ({self.reserve}) leaves nothing for the other groups: lower it")
        return self


class Database(_Part):
    """What the database of that fleet takes. The one that is simulated on is not timed for this."""

    commit_ms: float = Field(default=2.0, gt=0)  # from the lock of a row to the end of its commit


class Source(_Part):
    """Somebody who sends messages, and what each of them makes to do."""

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
    spread: Literal["exponential", "fixed"] = "exponential"  # of the seconds


class Scenario(_Part):
    seed: int = 1
    seconds: float = Field(default=600.0, gt=0)  # of virtual time in which messages come
    drain: float = Field(default=3600.0, ge=0)  # ... and how long afterwards what is left is worked off, at most
    budgets: dict[Group, int] = Field(default_factory=dict)
    fleet: Fleet = Fleet()
    database: Database = Database()
    sources: tuple[Source, ...] = Field(min_length=1)

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
        raise ConfigError(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error
