"""One attempt at one model: what it is told, and how it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.model import Fault, Prompt, Reply
from chordage.orchestrator.gateways.ports import Abort

DETAIL_LIMIT = 300


class AttemptFailed(ChordageError):
    """One attempt at a model call failed. Stays inside this package: what leaves is ModelFailed, with all of them."""

    def __init__(self, fault: Fault, detail: str, *, retry_after: float | None = None) -> None:
        self.fault = fault
        self.detail = " ".join(detail.split())[:DETAIL_LIMIT]
        self.retry_after = retry_after
        super().__init__(f"{fault}: {self.detail}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """How an attempt is to be made. `number` counts from 1 for each model."""

    abort: Abort
    number: int = 1
    timeout: float = 120.0
    stream: bool = True
    on_delta: Callable[[str], None] | None = None

    def delta(self, text: str) -> None:
        if text and self.stream and self.on_delta:
            self.on_delta(text)


class Model(Protocol):
    def attempt(self, prompt: Prompt, order: Order) -> Reply:
        """Ask once. Raises AttemptFailed, Aborted, HandedOver, and a UserError where only a person can help."""
        ...
