"""What a tool may know of the call it carries out, and how it talks back while it does.

A parameter annotated `Context` is filled in by the executor and is not shown to the model. Users make one of their own
to call their function in a test.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from chordage.orchestrator.core.approvals import OnExpiry, ResumeMode
from chordage.orchestrator.gateways.tools.suspend import Suspend

if TYPE_CHECKING:
    from chordage.orchestrator.gateways.ports import Results, TaskDesk  # `import chordage` must stay quick

TEXT_LIMIT = 500  # characters of one progress note: it is shown in a line


def _into_the_void(note: str) -> None:
    """Nobody watches a context that a test made."""


class Context:
    """The call in hand. `idempotency_key` stays the same however often the call is tried."""

    __slots__ = (
        "_cancelled",
        "_say",
        "attempt",
        "call_id",
        "decision",
        "idempotency_key",
        "results",
        "run_id",
        "task",
        "thread_id",
    )

    def __init__(
        self,
        *,
        run_id: str = "run",
        thread_id: str = "thread",
        call_id: str = "call",
        idempotency_key: str = "key",
        attempt: int = 1,
        decision: Any = None,
        task: TaskDesk | None = None,
        results: Results | None = None,
        on_progress: Callable[[str], None] = _into_the_void,
    ) -> None:
        self.run_id = run_id
        self.thread_id = thread_id
        self.call_id = call_id
        self.idempotency_key = idempotency_key
        self.attempt = attempt  # 1 for the first, one more for every further try
        self.decision = decision  # what was answered, when the call asked for it and runs again
        self.task = task  # the file of the task that the turn belongs to
        self.results = results  # of earlier calls of the thread, to be read in parts
        self._say = on_progress
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the call was cancelled, or its time is over. Look often."""
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True

    def progress(self, done: float | str, text: str = "") -> None:
        """Tell watchers how far it is: `progress(0.4)`, `progress("page 3")` or `progress(0.4, "page 3")`.

        Notes are for eyes only and may be dropped: when several come at once, the newest is shown.
        """
        if not self._cancelled:
            self._say(_note(done, text))

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


def _note(done: float | str, text: str) -> str:
    if isinstance(done, str):
        return f"{done} {text}".strip()[:TEXT_LIMIT]
    share = min(1.0, max(0.0, done))
    return f"{share:.0%} {text}".strip()[:TEXT_LIMIT]
