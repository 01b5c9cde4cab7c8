# ruff: noqa: ASYNC109 - a `timeout` as in `Client`, whose error says of which turn
"""`chordage.AsyncClient`: the HTTP API of a fleet, for programs with an event loop. It has the methods of `Client`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import anyio
import httpx

from chordage.workers.client import calls
from chordage.workers.client.attempts import RETRIES, Attempts
from chordage.workers.client.calls import HttpCall, TurnId
from chordage.workers.client.connection import WAIT_SECONDS, RetryClock, ServerAddress, result_of
from chordage.workers.client.follow import FollowedEvent, Following
from chordage.workers.client.models import (
    ForkedThread,
    InboxQuestion,
    ListPage,
    RunComparison,
    RunInfo,
    StoredDecision,
    SubmittedTurn,
    ThreadInfo,
    ThreadMessage,
    TurnInfo,
)
from chordage.workers.client.sizes import ANSWER_BYTES, AnswerBody

if TYPE_CHECKING:
    from chordage.workers.client.async_runner import AsyncRunner

T = TypeVar("T")


class AsyncClient:
    """As `Client`. For one event loop: asyncio, or trio."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        retries: int = RETRIES,
        max_bytes: int = ANSWER_BYTES,
        http: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        self._server = ServerAddress.of(base_url, key)
        self._retries = retries
        self._max_bytes = max_bytes
        self._own = http is None
        self._http = http or httpx.AsyncClient(**self._server.options())
        self.sleep = sleep

    # Turns

    async def submit(
        self,
        text: str,
        *,
        agent: str | None = None,
        thread: str | None = None,
        dedupe_key: str | None = None,
        **fields: Any,
    ) -> SubmittedTurn:
        return await self.send(
            calls.submit(text, {"agent": agent, "thread_id": thread, "dedupe_key": dedupe_key, **fields})
        )

    async def wait(self, turn: TurnId, timeout: float | None = None, *, stop_at_questions: bool = True) -> TurnInfo:
        clock = RetryClock(timeout, calls.turn_id_of(turn))
        longest = calls.QUESTION_SECONDS if stop_at_questions else WAIT_SECONDS
        while True:
            state = await self.send(calls.turn(turn, wait=clock.seconds(longest)))
            if state.is_done or (stop_at_questions and state.is_waiting):
                return state
            await self.sleep(clock.pause(state.status))

    async def ask(self, text: str, timeout: float | None = None, **fields: Any) -> TurnInfo:
        return await self.wait(await self.submit(text, **fields), timeout)

    async def turn(self, turn: TurnId) -> TurnInfo:
        return await self.send(calls.turn(turn))

    def turns(self, *, limit: int | None = None, **filters: Any) -> AsyncIterator[TurnInfo]:
        return self._items(lambda after, size: calls.turns(after, size, filters), limit)

    async def cancel(self, turn: TurnId, reason: str | None = None) -> TurnInfo:
        return await self.send(calls.cancel(turn, reason))

    async def stream(
        self, turn: TurnId, *, after: str | None = None, stop_at_questions: bool = True
    ) -> AsyncIterator[FollowedEvent]:
        following = Following(
            turn, after, self._retries, stop_at_questions=stop_at_questions, max_bytes=self._max_bytes
        )
        while not following.is_over:
            failure: httpx.TransportError | httpx.Response | None = None
            try:
                async with self._http.stream(**self._server.request(following.request())) as response:
                    if response.is_success:
                        following.begin(response)
                        async for chunk in response.aiter_bytes():
                            for event in following.take(chunk):
                                yield event
                    else:
                        failure = await self._whole(response)
            except httpx.TransportError as error:
                failure = error
            if not following.is_over:
                await self.sleep(following.pause_after(failure))

    # Decisions

    def inbox(self, *, limit: int | None = None, **filters: Any) -> AsyncIterator[InboxQuestion]:
        return self._items(lambda after, size: calls.inbox(after, size, filters), limit)

    async def decide(
        self,
        target: str | InboxQuestion,
        action: str,
        payload: Any = True,
        *,
        reason: str | None = None,
        edited_args: Mapping[str, Any] | None = None,
        decision_key: str | None = None,
    ) -> StoredDecision:
        return await self.send(
            calls.decide(
                target, action, payload=payload, reason=reason, edited_args=edited_args, decision_key=decision_key
            )
        )

    # Threads

    def threads(self, *, limit: int | None = None, **filters: Any) -> AsyncIterator[ThreadInfo]:
        return self._items(lambda after, size: calls.threads(after, size, filters), limit)

    def history(self, thread_id: str, *, limit: int | None = None) -> AsyncIterator[ThreadMessage]:
        return self._items(lambda after, size: calls.history(thread_id, after, size), limit)

    async def fork(
        self,
        thread_id: str,
        *,
        run_id: str | None = None,
        step: int | None = None,
        upto: int | None = None,
        run: bool = False,
        edits: Mapping[str, Any] | None = None,
        effects: Collection[str] = (),
        name: str | None = None,
    ) -> ForkedThread:
        return await self.send(
            calls.fork(thread_id, run_id=run_id, step=step, upto=upto, run=run, edits=edits, effects=effects, name=name)
        )

    # Runs

    def runs(self, *, limit: int | None = None, **filters: Any) -> AsyncIterator[RunInfo]:
        return self._items(lambda after, size: calls.runs(after, size, filters), limit)

    async def run(self, run_id: str) -> RunInfo:
        return await self.send(calls.run(run_id))

    async def compare(self, run_id: str, other: str | None = None) -> RunComparison:
        return await self.send(calls.compare(run_id, other))

    # Stepped turns

    @overload
    async def runner(self, text: str, *, timeout: float | None = None, **fields: Any) -> AsyncRunner: ...
    @overload
    async def runner(self, *, run_id: str, timeout: float | None = None) -> AsyncRunner: ...

    async def runner(
        self,
        text: str | None = None,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        **fields: Any,
    ) -> AsyncRunner:
        """Its waits are in threads, so that the event loop is free meanwhile."""
        from chordage.workers.client.async_runner import AsyncRunner

        return await AsyncRunner.of(self.send, text, run_id, timeout, fields)

    # Requests

    async def send(self, call: HttpCall[T]) -> T:
        attempts = Attempts(self._retries, decides=call.decides, is_repeatable=call.is_repeatable)
        while True:
            failure: httpx.TransportError | httpx.Response
            try:
                async with self._http.stream(**self._server.request(call)) as answer:
                    failure = response = await self._whole(answer)
            except httpx.TransportError as error:
                failure = error
            else:
                if response.is_success:
                    return result_of(call, response)
            await self.sleep(attempts.pause_after(failure))

    async def _whole(self, answer: httpx.Response) -> httpx.Response:
        return await AnswerBody(answer, self._max_bytes).aread(answer.aiter_bytes())

    async def _items(
        self, page: Callable[[str | None, int], HttpCall[ListPage[T]]], limit: int | None
    ) -> AsyncIterator[T]:
        pages = calls.Pages[T](limit)
        while pages.more:
            for item in pages.take(await self.send(page(pages.after, pages.size))):
                yield item

    async def aclose(self) -> None:
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
