"""How a tool asks for its call to be put aside until somebody outside has decided."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from chordage.orchestrator.core.approvals import OnExpiry, Question, ResumeMode, Why

E = TypeVar("E", bound=StrEnum)


class Suspend(Exception):
    """A tool asks for a decision before it goes on."""

    def __init__(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        resume_mode: ResumeMode | str = ResumeMode.PASS_TO_TOOL,
        expires_in: float | timedelta | None = None,
        on_expiry: OnExpiry | str = OnExpiry.DENY,
        default: Any = None,
    ) -> None:
        super().__init__(prompt)
        self.prompt = _asked(prompt)
        self.schema = schema
        self.resume_mode = _one_of(ResumeMode, resume_mode, "resume_mode")
        self.expires_in = _seconds(expires_in)
        self.on_expiry = _one_of(OnExpiry, on_expiry, "on_expiry")
        self.default = default

    @property
    def question(self) -> Question:
        return Question(
            why=Why.TOOL, prompt=self.prompt, schema=self.schema, resume_mode=self.resume_mode,
            expires_in=self.expires_in, on_expiry=self.on_expiry, default=self.default,
        )  # fmt: skip


def _asked(prompt: str) -> str:
    if not prompt.strip():
        raise ValueError("suspend: the prompt is blank; say what has to be decided")
    return prompt


def _seconds(expires_in: float | timedelta | None) -> float | None:
    seconds = expires_in.total_seconds() if isinstance(expires_in, timedelta) else expires_in
    if seconds is not None and not seconds > 0:
        raise ValueError(f"suspend: expires_in must be more than 0 seconds, or left out; got {expires_in!r}")
    return seconds


def _one_of(kind: type[E], given: str, name: str) -> E:
    try:
        return kind(given)
    except ValueError:
        raise ValueError(f"suspend: {name} must be one of {', '.join(kind)}; got {given!r}") from None
