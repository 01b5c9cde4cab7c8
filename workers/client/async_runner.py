"""The runner for programs with an event loop: the same loop, in a thread, its requests made by the client it is of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from anyio import CancelScope, from_thread, to_thread

from chordage.orchestrator.core.stepping import Standing
from chordage.workers.client.calls import HttpCall
from chordage.workers.client.http_access import HttpAccess
from chordage.workers.client.message import HeldMessage, Pushed, RunOutcome
from chordage.workers.client.runner import Runner, TurnState, runner_for

T = TypeVar("T")


class AsyncRunner:
    """Made by `await client.runner(...)`; its methods are those of `Runner`. Park a run that you leave with `break`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @classmethod
    async def of(
        cls,
        send: Callable[[HttpCall[Any]], Coroutine[Any, Any, Any]],
        text: str | None,
        run_id: str | None,
        timeout: float | None,  # noqa: ASYNC109 - of each wait of the runner
        fields: Mapping[str, Any],
    ) -> Self:
        access = HttpAccess(lambda call: from_thread.run(send, call))
        return cls(await _in_thread(runner_for, access, text, run_id, timeout, fields))

    @property
    def turn_id(self) -> str:
        return self._runner.turn_id

    async def run_id(self) -> str:
        return await _in_thread(lambda: self._runner.run_id)

    async def standing(self) -> Standing:
        return await _in_thread(lambda: self._runner.standing)

    async def look(self) -> TurnState:
        return await _in_thread(self._runner.look)

    async def __aiter__(self) -> AsyncIterator[HeldMessage]:
        messages = iter(self._runner)
        try:
            while (message := await _in_thread(next, messages, None)) is not None:
                yield message
        finally:
            with CancelScope(shield=True):
                await _in_thread(messages.close)  # type: ignore[attr-defined]  # a generator; it parks the run

    async def push_messages(self, *messages: HeldMessage | Pushed | Sequence[Pushed]) -> None:
        await _in_thread(self._runner.push_messages, *messages)

    async def steer(self, text: str) -> None:
        await _in_thread(self._runner.steer, text)

    async def set_params(
        self, params: Mapping[str, Any] | None = None, /, *, messages: Sequence[Any] | None = None, **named: Any
    ) -> None:
        await _in_thread(partial(self._runner.set_params, params, messages=messages, **named))

    async def set_options(self, **options: Any) -> None:
        await _in_thread(partial(self._runner.set_options, **options))

    async def set_plan(self, plan: Mapping[str, Any] | str) -> None:
        await _in_thread(self._runner.set_plan, plan)

    async def compact(self) -> None:
        await _in_thread(self._runner.compact)

    async def generate_tool_response(self) -> list[dict[str, Any]] | None:
        return await _in_thread(self._runner.generate_tool_response)

    async def retry_tools(self, *ask_ids: str, force: bool = False) -> list[dict[str, Any]] | None:
        return await _in_thread(partial(self._runner.retry_tools, *ask_ids, force=force))

    async def supply_tool_results(self, *results: Mapping[str, Any]) -> None:
        await _in_thread(self._runner.supply_tool_results, *results)

    async def hold_calls(self, *ask_ids: str) -> None:
        await _in_thread(self._runner.hold_calls, *ask_ids)

    async def decide_call(self, ask_id: str, *, allow: bool, reason: str | None = None, payload: Any = True) -> None:
        await _in_thread(partial(self._runner.decide_call, ask_id, allow=allow, reason=reason, payload=payload))

    async def park(self) -> None:
        await _in_thread(self._runner.park)

    async def cancel(self, reason: str | None = None) -> None:
        await _in_thread(self._runner.cancel, reason)

    async def until_done(self) -> RunOutcome:
        return await _in_thread(self._runner.until_done)

    async def done(self) -> RunOutcome:
        return await _in_thread(self._runner.done)


async def _in_thread(function: Callable[..., T], *args: Any) -> T:
    """A wait that is cancelled is left to its thread, which ends with the next answer of the server."""
    return await to_thread.run_sync(partial(function, *args), abandon_on_cancel=True)
