"""`chordage.Client`: the HTTP API of a fleet, for programs without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

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
    from chordage.workers.client.runner import Runner

T = TypeVar("T")


class Client:
    """A client of one server. Safe to share between threads.

    `base_url` and `key` default to CHORDAGE_URL and CHORDAGE_KEY. A request is repeated up to `retries` times after a
    broken connection, 429 and 503; that never makes a second turn or decision. `max_bytes`:
    of an answer, and of an event of a stream; a longer one raises AnswerTooLarge. `http`: an `httpx.Client` of yours,
    for certificates or a proxy of its own.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        retries: int = RETRIES,
        max_bytes: int = ANSWER_BYTES,
        http: httpx.Client | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._server = ServerAddress.of(base_url, key)
        self._retries = retries
        self._max_bytes = max_bytes
        self._own = http is None
        self._http = http or httpx.Client(**self._server.options())
        self.sleep = sleep

    # Turns

    def submit(
        self,
        text: str,
        *,
        agent: str | None = None,
        thread: str | None = None,
        dedupe_key: str | None = None,
        **fields: Any,
    ) -> SubmittedTurn:
        """Store a message. `fields`: the other fields of a turn, such as when_busy, deadline, meta and limits."""
        return self.send(calls.submit(text, {"agent": agent, "thread_id": thread, "dedupe_key": dedupe_key, **fields}))

    def wait(self, turn: TurnId, timeout: float | None = None, *, stop_at_questions: bool = True) -> TurnInfo:
        """Until the turn is done, or waits for a decision. Raises TimeoutError. With `stop_at_questions=False` it also
        waits while others decide.
        """
        clock = RetryClock(timeout, calls.turn_id_of(turn))
        longest = calls.QUESTION_SECONDS if stop_at_questions else WAIT_SECONDS
        while True:
            state = self.send(calls.turn(turn, wait=clock.seconds(longest)))
            if state.is_done or (stop_at_questions and state.is_waiting):
                return state
            self.sleep(clock.pause(state.status))

    def ask(self, text: str, timeout: float | None = None, **fields: Any) -> TurnInfo:
        """Submit a message, and wait for its turn."""
        return self.wait(self.submit(text, **fields), timeout)

    def turn(self, turn: TurnId) -> TurnInfo:
        return self.send(calls.turn(turn))

    def turns(self, *, limit: int | None = None, **filters: Any) -> Iterator[TurnInfo]:
        """Newest first; `filters` such as status, agent and thread_id."""
        return self._items(lambda after, size: calls.turns(after, size, filters), limit)

    def cancel(self, turn: TurnId, reason: str | None = None) -> TurnInfo:
        return self.send(calls.cancel(turn, reason))

    def stream(
        self, turn: TurnId, *, after: str | None = None, stop_at_questions: bool = True
    ) -> Iterator[FollowedEvent]:
        """What happens to a turn, until it ends or waits for a decision; with `stop_at_questions=False` until it ends.

        A broken connection is opened again behind the last event: none is missing, none comes twice. `after`: the id
        of an event, to continue where an earlier stream was left.
        """
        following = Following(
            turn, after, self._retries, stop_at_questions=stop_at_questions, max_bytes=self._max_bytes
        )
        while not following.is_over:
            failure: httpx.TransportError | httpx.Response | None = None
            try:
                with self._http.stream(**self._server.request(following.request())) as response:
                    if response.is_success:
                        following.begin(response)
                        for chunk in response.iter_bytes():
                            yield from following.take(chunk)
                    else:
                        failure = self._whole(response)
            except httpx.TransportError as error:
                failure = error
            if not following.is_over:
                self.sleep(following.pause_after(failure))

    # Decisions

    def inbox(self, *, limit: int | None = None, **filters: Any) -> Iterator[InboxQuestion]:
        """What waits for a decision, oldest first, page by page; `filters` such as agent, thread_id and run_id."""
        return self._items(lambda after, size: calls.inbox(after, size, filters), limit)

    def decide(
        self,
        target: str | InboxQuestion,
        action: str,
        payload: Any = True,
        *,
        reason: str | None = None,
        edited_args: Mapping[str, Any] | None = None,
        decision_key: str | None = None,
    ) -> StoredDecision:
        """Answer a question by its id. `action`: `approve` or `deny`. `payload` has to fit the schema of the question;
        `edited_args` replace the arguments of the call.
        """
        return self.send(
            calls.decide(
                target, action, payload=payload, reason=reason, edited_args=edited_args, decision_key=decision_key
            )
        )

    # Threads

    def threads(self, *, limit: int | None = None, **filters: Any) -> Iterator[ThreadInfo]:
        """Those with the newest turns first."""
        return self._items(lambda after, size: calls.threads(after, size, filters), limit)

    def history(self, thread_id: str, *, limit: int | None = None) -> Iterator[ThreadMessage]:
        """Messages and replies of a thread, newest first."""
        return self._items(lambda after, size: calls.history(thread_id, after, size), limit)

    def fork(
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
        """A new thread with the history of this one: all of it, up to the entry `upto`, or to the end of a `step` of
        a run. With `run` the run continues from there, as the turn `turn_id`; what it repeats is answered from the
        record. `edits`: text, arguments, model, instructions. `effects`: tools that run. `name`: of the new thread.
        """
        return self.send(
            calls.fork(thread_id, run_id=run_id, step=step, upto=upto, run=run, edits=edits, effects=effects, name=name)
        )

    # Runs

    def runs(self, *, limit: int | None = None, **filters: Any) -> Iterator[RunInfo]:
        """Newest first; `filters` such as status, agent and thread_id."""
        return self._items(lambda after, size: calls.runs(after, size, filters), limit)

    def run(self, run_id: str) -> RunInfo:
        return self.send(calls.run(run_id))

    def compare(self, run_id: str, other: str | None = None) -> RunComparison:
        """Two runs side by side; by default a fork and the run that it is a fork of."""
        return self.send(calls.compare(run_id, other))

    # Stepped turns

    @overload
    def runner(self, text: str, *, timeout: float | None = None, **fields: Any) -> Runner: ...
    @overload
    def runner(self, *, run_id: str, timeout: float | None = None) -> Runner: ...

    def runner(
        self, text: str | None = None, *, run_id: str | None = None, timeout: float | None = None, **fields: Any
    ) -> Runner:
        """Drive a turn reply by reply: a new one; or with `run_id` (or the id of its turn) one that exists."""
        from chordage.workers.client.http_access import HttpAccess
        from chordage.workers.client.runner import runner_for

        return runner_for(HttpAccess(self.send, self.sleep), text, run_id, timeout, fields)

    # Requests

    def send(self, call: HttpCall[T]) -> T:
        """Send a request, again if need be. For what has no method here."""
        attempts = Attempts(self._retries, decides=call.decides, is_repeatable=call.is_repeatable)
        while True:
            failure: httpx.TransportError | httpx.Response
            try:
                with self._http.stream(**self._server.request(call)) as answer:
                    failure = response = self._whole(answer)
            except httpx.TransportError as error:
                failure = error
            else:
                if response.is_success:
                    return result_of(call, response)
            self.sleep(attempts.pause_after(failure))

    def _whole(self, answer: httpx.Response) -> httpx.Response:
        return AnswerBody(answer, self._max_bytes).read(answer.iter_bytes())

    def _items(self, page: Callable[[str | None, int], HttpCall[ListPage[T]]], limit: int | None) -> Iterator[T]:
        pages = calls.Pages[T](limit)
        while pages.more:
            yield from pages.take(self.send(page(pages.after, pages.size)))

    def close(self) -> None:
        if self._own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
