"""What a server says it offers, in values of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.agent import Effect


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One tool in the server's own words."""

    name: str
    description: str = ""
    schema: dict[str, Any]
    output: dict[str, Any] | None = None  # the schema of its structured results
    read_only: bool | None = None
    idempotent: bool | None = None

    @property
    def hinted(self) -> Effect:
        """What its annotations come to. They are the server's word, and nobody has checked it."""
        if self.read_only:
            return Effect.PURE
        return Effect.IDEMPOTENT if self.idempotent else Effect.UNSAFE


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Listing:
    """All tools of a server at one moment; `at` by the monotonic clock."""

    tools: tuple[Listed, ...]
    at: float
