"""One tool call, with the tries its declaration allows, told as an outcome."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from chordage.orchestrator.core.errors import Aborted, HandedOver
from chordage.orchestrator.core.retry import Backoff
from chordage.orchestrator.gateways.ports import Abort, CallOrder, ToolOutcome
from chordage.orchestrator.gateways.tools import failures, results
from chordage.orchestrator.gateways.tools.around import Around, nothing_around
from chordage.orchestrator.gateways.tools.attempt import Attempt, Ended, Letters
from chordage.orchestrator.gateways.tools.context import Context
from chordage.orchestrator.gateways.tools.declare import Tool
from chordage.orchestrator.gateways.tools.side_thread import SideThreads
from chordage.orchestrator.gateways.tools.suspend import Suspend

BACKOFF = Backoff(first=0.5, longest=30.0, jitter=0.5)

_log = logging.getLogger(__name__)


class Executor:
    """Keeps nothing but idle side threads. One serves all threads of a process."""

    def __init__(self, around: Around = nothing_around) -> None:
        self._sides = SideThreads()
        self._around = around

    def carry_out(
        self,
        tool: Tool,
        order: CallOrder,
        arguments: dict[str, Any],
        *,
        abort: Abort,
        on_progress: Callable[[str], None],
    ) -> ToolOutcome:
        """`arguments` as `Arguments.fit` made them."""
        pass_on = partial(_pass_on, on_progress)
        tries = 1
        while True:
            ended = self._try(tool, order, arguments, tries, abort=abort, on_progress=pass_on)
            if tries > tool.options.retries or not _may_pass(tool, ended.error):
                return _told(tool, order, ended, tries)
            _log.info("tool %s raised %r, try %d follows", tool.name, ended.error, tries + 1)
            abort.wait(BACKOFF.delay(tries, random.random()))
            tries += 1

    def ask_hook(self, tool: Tool, order: CallOrder, arguments: dict[str, Any]) -> Ended:
        """What the reconcile hook says: its text is None when the call did not happen."""
        hook, asked = tool.options.reconcile, tool.hook_wants
        assert hook is not None
        assert asked is not None
        letters = Letters()
        context = _context(order, 1, letters)
        known = {p.name: arguments[p.name] for p in asked.parameters}
        call = partial(hook, **known, **dict.fromkeys(asked.context, context))
        attempt = Attempt(call, context, letters, _text_or_none, around=self._around)
        return self._run(attempt, tool, abort=_NobodyAborts(), on_progress=_unseen)

    def _try(
        self,
        tool: Tool,
        order: CallOrder,
        arguments: dict[str, Any],
        tries: int,
        *,
        abort: Abort,
        on_progress: Callable[[str], None],
    ) -> Ended:
        letters = Letters()
        context = _context(order, tries, letters)
        call = partial(tool.function, **arguments, **dict.fromkeys(tool.wants.context, context))
        attempt = Attempt(call, context, letters, results.as_text, around=self._around)
        return self._run(attempt, tool, abort=abort, on_progress=on_progress)

    def _run(self, attempt: Attempt, tool: Tool, *, abort: Abort, on_progress: Callable[[str], None]) -> Ended:
        return attempt.run(self._sides, timeout=tool.options.timeout, abort=abort, on_progress=on_progress)


class _NobodyAborts:
    """A hook is asked while nobody waits for the call any more."""

    def check(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


def _context(order: CallOrder, tries: int, letters: Letters) -> Context:
    return Context(
        run_id=order.run_id,
        thread_id=order.thread_id,
        call_id=order.call_id,
        idempotency_key=order.idempotency_key,
        attempt=order.attempt + tries - 1,
        decision=order.decision,
        task=order.task,
        results=order.results,
        on_progress=letters.put,
    )


def _may_pass(tool: Tool, error: BaseException | None) -> bool:
    """Whether another try may help. Not after a timeout: the function may still be running."""
    ours = failures.TimedOut | results.NotJson | Suspend
    return isinstance(error, tool.options.retry_on) and not isinstance(error, ours)


def _told(tool: Tool, order: CallOrder, ended: Ended, tries: int) -> ToolOutcome:
    if ended.error is None:
        return results.outcome(ended.text or "", limit=tool.options.result_limit, call_id=order.call_id, tries=tries)
    if isinstance(ended.error, Suspend):
        return ToolOutcome(content=ended.error.prompt, question=ended.error.question, tries=tries)
    trouble = failures.outcome(tool.name, ended.error, timeout=tool.options.timeout, tries=tries)
    trace = None if isinstance(ended.error, failures.Told) else ended.error  # it says all there is to say
    _log.warning("%s, call %s: %s", tool.place, order.call_id, trouble.code, exc_info=trace)
    return trouble


def _text_or_none(value: Any) -> str | None:
    return None if value is None else results.as_text(value)


def _unseen(note: str) -> None:
    """Nobody watches a hook."""


def _pass_on(on_progress: Callable[[str], None], note: str) -> None:
    """Progress is for watchers: a call must not fail because nobody could be told."""
    try:
        on_progress(note)
    except (Aborted, HandedOver):
        raise
    except Exception:
        _log.warning("a progress note was lost", exc_info=True)
