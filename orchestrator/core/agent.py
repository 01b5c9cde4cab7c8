"""An agent as its room defines it, and what a tool declares of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What may be done with a call whose worker died inside it."""

    PURE = "pure"  # run again
    IDEMPOTENT = "idempotent"  # run again, with the same idempotency key
    RECONCILABLE = "reconcilable"  # ask the tool's reconcile hook what became of it
    UNSAFE = "unsafe"  # never run again blindly

    @property
    def starts_on_record(self) -> bool:
        """Whether the start is committed before the tool runs: only then does a crash leave evidence of it."""
        return self in {Effect.RECONCILABLE, Effect.UNSAFE}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """What the orchestrator needs to know of a tool without running it."""

    name: str
    description: str
    schema: dict[str, Any]
    effect: Effect = Effect.UNSAFE
    timeout: float = 60.0  # seconds, for one attempt
    retries: int = 0
    result_limit: int = 65_536  # characters the model sees; the whole result is kept apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    max_rounds: int | None = 25
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    name: str
    model: str
    fallbacks: tuple[str, ...] = ()
    instructions: str = ""
    tools: tuple[str, ...] = ()  # import paths, "package.module:name"
    strategy: str = "react"
    limits: Limits = Limits()
    params: dict[str, Any] = field(default_factory=dict)
    concurrency: int | None = None  # calls of one round that may run at once
    model_timeout: float = 120.0
    model_retries: int = 2
    stream: bool = True
    tenant: str | None = None
