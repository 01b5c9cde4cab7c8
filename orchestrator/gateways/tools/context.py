"""What a tool may know of the call it runs for, how it reports progress, and how it asks for a decision.

A parameter annotated `Context` is filled in by the executor and is not shown to the model. In a test, users make a
Context of their own to call their function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from chordage.orchestrator.core.approvals import OnExpiry, Question, ResumeMode, Why, checked_question
from chordage.orchestrator.core.errors import InvalidDecision

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.ports import Executions, ResultReader, TaskFile

NOTE_LENGTH = 500  # characters of one progress note: it is shown in a line

E = TypeVar("E", bound=StrEnum)


class Suspend(Exception):
    """Raised by a tool to wait for a decision before it continues."""

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
        seconds = expires_in.total_seconds() if isinstance(expires_in, timedelta) else expires_in
        try:
            checked = checked_question(prompt, schema, seconds, default)
        except ValueError as error:
            raise ValueError(f"suspend: {error}") from None
        self.question = Question(
            why=Why.TOOL,
            resume_mode=_member(ResumeMode, resume_mode, "resume_mode"),
            expires_in=seconds,
            on_expiry=_member(OnExpiry, on_expiry, "on_expiry"),
            **checked,
        )
        if (fault := fault_of_question(self.question)) is not None:
            raise ValueError(f"suspend: {fault}")


def fault_of_question(question: Question) -> str | None:
    """Why no answer could fit, or the default does not. Such a question would stay open for ever."""
    if question.schema is None:
        return None
    from chordage.orchestrator.gateways import schemas  # heavy: only its users pay for it

    if (fault := schemas.fault_of(question.schema)) is not None:
        return f"the schema is none: {fault}"
    try:
        misfit = schemas.complaint_about(question.default, question.schema)
    except InvalidDecision as error:
        return str(error)
    if misfit is not None and question.on_expiry is OnExpiry.DEFAULT:
        return f"the default does not fit the schema: {misfit}"
    return None


def _member(kind: type[E], given: str, name: str) -> E:
    try:
        return kind(given)
    except ValueError:
        raise ValueError(f"suspend: {name} must be one of {', '.join(kind)}; got {given!r}") from None


def _discard(note: str) -> None:
    """The progress of a context that a test made."""


@dataclass(kw_only=True, slots=True, eq=False, repr=False)
class Context:
    """The call that the tool runs for. `idempotency_key` stays the same however often the call is tried."""

    run_id: str = "run"
    thread_id: str = "thread"
    call_id: str = "call"
    idempotency_key: str = "key"
    attempt: int = 1  # one more for every further attempt
    decision: Any = None  # the answer, where the call asked for a decision and runs again
    task: TaskFile | None = None  # the file of the task that the turn belongs to
    results: ResultReader | None = None  # of earlier calls of the thread, to be read in parts
    executions: Executions | None = None  # of a canary of `chordage drill`
    on_progress: Callable[[str], None] = _discard
    _cancelled: bool = field(default=False, init=False)

    @property
    def cancelled(self) -> bool:
        """Whether the result is not wanted any more: the call was cancelled, or its time is over. Look often."""
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True

    def progress(self, done: float | str, text: str = "") -> None:
        """Report progress to watchers: `progress(0.4)`, `progress("page 3")` or `progress(0.4, "page 3")`.

        Notes may be dropped: when several come at once, the newest is shown.
        """
        if not self._cancelled:
            share = done if isinstance(done, str) else f"{min(1.0, max(0.0, done)):.0%}"
            self.on_progress(f"{share} {text}".strip()[:NOTE_LENGTH])

    def suspend(
        self,
        prompt: str,
        *,
        schema: dict[str, Any] | None = None,
        resume_mode: ResumeMode | str = ResumeMode.PASS_TO_TOOL,
        expires_in: float | timedelta | None = None,
        on_expiry: OnExpiry | str = OnExpiry.DENY,
        default: Any = None,
    ) -> NoReturn:
        """Leave the tool here and ask for a decision. Raises `Suspend`: do not catch it."""
        raise Suspend(
            prompt,
            schema=schema,
            resume_mode=resume_mode,
            expires_in=expires_in,
            on_expiry=on_expiry,
            default=default,
        )
