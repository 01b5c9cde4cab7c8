"""How a tool asks for its call to be put aside until somebody outside has decided."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=StrEnum)


class ResumeMode(StrEnum):
    """What the decision is used for once it is there."""

    REPLAY = "replay_tool_call"  # the tool runs again with the same arguments
    USE_AS_RESULT = "use_decision_as_tool_result"  # the decision is the result, the tool does not run
    PASS_TO_TOOL = "pass_decision_to_tool"  # noqa: S105 - a mode; the tool runs again and sees the decision


class OnExpiry(StrEnum):
    """What happens when nobody decided in time."""

    DENY = "deny"
    CANCEL_RUN = "cancel_run"
    ESCALATE = "escalate"
    DEFAULT = "default"  # `default` is taken as if somebody had answered it


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
