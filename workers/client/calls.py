"""The requests of the HTTP clients and how their answers are read. Nothing is sent here: both clients send these."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

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

T = TypeVar("T")

ACTIONS = {"approve": "resume", "deny": "cancel"}
QUESTION_SECONDS = 3.0  # between two looks at a turn that may come to wait for a decision
PAGE = 100

TurnId = str | SubmittedTurn | TurnInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpCall(Generic[T]):
    """One request. It may be sent several times, with the same keys each time."""

    method: str
    path: str
    read: Callable[[Any], T]  # the body of an answer
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    waits: float = 0.0  # seconds that the server may take before it answers
    decides: bool = False
    is_repeatable: bool = True  # False: after an answer that says that nothing was done, alone


def submit(text: str, fields: Mapping[str, Any]) -> HttpCall[SubmittedTurn]:
    """Without a `dedupe_key` the call has one of its own, so that a repeated request makes no second turn."""
    own_key = fields.get("dedupe_key") is None
    body = {"text": text, **fields, **({"dedupe_key": uuid.uuid4().hex} if own_key else {})}

    def read(answer: Any) -> SubmittedTurn:
        turn = SubmittedTurn.model_validate(answer)
        return turn.model_copy(update={"duplicate": False}) if own_key else turn  # a repetition is none of the caller's

    return _post("/turns", read, {name: value for name, value in body.items() if value is not None})


def turn(target: TurnId, *, wait: float = 0.0) -> HttpCall[TurnInfo]:
    query = {"wait": wait} if wait > 0 else {}
    return _get(f"/turns/{turn_path(target)}", TurnInfo.model_validate, query, waits=wait)


def events(target: TurnId, *, after: str | None, stop_at_questions: bool) -> HttpCall[None]:
    """The stream of a turn. It may be silent for as long as the server's heartbeat."""
    query = {"until": "waiting"} if stop_at_questions else {}
    headers = {"Accept": "text/event-stream"} | ({} if after is None else {"Last-Event-ID": after})
    return _get(f"/turns/{turn_path(target)}/events", lambda _: None, query, headers=headers)


def cancel(target: TurnId, reason: str | None) -> HttpCall[TurnInfo]:
    return _post(f"/turns/{turn_path(target)}/cancel", TurnInfo.model_validate, _given(reason=reason))


def decide(
    target: str | InboxQuestion,
    action: str,
    *,
    payload: Any,
    reason: str | None,
    edited_args: Mapping[str, Any] | None,
    decision_key: str | None,
) -> HttpCall[StoredDecision]:
    decision = _given(
        target=target.id if isinstance(target, InboxQuestion) else target,
        action=ACTIONS.get(action, action),
        reason=reason,
        edited_args=None if edited_args is None else dict(edited_args),
        decision_key=decision_key or uuid.uuid4().hex,
    )
    if decision["action"] == "resume":
        decision["payload"] = payload

    def read(answer: Any) -> StoredDecision:
        return StoredDecision.model_validate(answer["decisions"][0])

    return _post("/decisions", read, {"decisions": [decision]}, decides=True)


def inbox(after: str | None, limit: int, filters: Mapping[str, Any]) -> HttpCall[ListPage[InboxQuestion]]:
    return _get("/inbox", _page_of(InboxQuestion), _given(**filters, after=after, limit=limit))


def threads(after: str | None, limit: int, filters: Mapping[str, Any]) -> HttpCall[ListPage[ThreadInfo]]:
    return _get("/threads", _page_of(ThreadInfo), _given(**filters, after=after, limit=limit))


def turns(after: str | None, limit: int, filters: Mapping[str, Any]) -> HttpCall[ListPage[TurnInfo]]:
    return _get("/turns", _page_of(TurnInfo), _given(**filters, after=after, limit=limit))


def runs(after: str | None, limit: int, filters: Mapping[str, Any]) -> HttpCall[ListPage[RunInfo]]:
    return _get("/runs", _page_of(RunInfo), _given(**filters, after=after, limit=limit))


def run(run_id: str) -> HttpCall[RunInfo]:
    return _get(f"/runs/{quote(run_id, safe='')}", RunInfo.model_validate)


def fork(
    thread_id: str,
    *,
    run_id: str | None,
    step: int | None,
    upto: int | None,
    run: bool,
    edits: Mapping[str, Any] | None,
    effects: Iterable[str],
    name: str | None,
) -> HttpCall[ForkedThread]:
    """Sent once where it may have arrived: another would be another thread."""
    fields = _given(run_id=run_id, step=step, upto=upto, run=run or None, edits=edits, thread_id=name)
    body = fields | ({"effects": sorted(effects)} if effects else {})
    path = f"/threads/{quote(thread_id, safe='')}/fork"
    return _post(path, ForkedThread.model_validate, body, is_repeatable=False)


def compare(run_id: str, other: str | None) -> HttpCall[RunComparison]:
    return _get(f"/runs/{quote(run_id, safe='')}/compare", RunComparison.model_validate, _given(**{"with": other}))


def history(thread_id: str, after: str | None, limit: int) -> HttpCall[ListPage[ThreadMessage]]:
    """The newest page first; each page is oldest first, and is turned round here."""
    path = f"/threads/{quote(thread_id, safe='')}/history"
    return _get(path, _page_of(ThreadMessage, newest_first=True), _given(after=after, limit=limit))


def stepped(target: str) -> HttpCall[dict[str, Any]]:
    return _get(f"/turns/{quote(target, safe='')}/stepped", dict)


def step(target: str, verb: str, args: Mapping[str, Any], *, if_rev: int | None, key: str) -> HttpCall[dict[str, Any]]:
    headers = {"Idempotency-Key": key} | ({} if if_rev is None else {"If-Match": f'"{if_rev}"'})
    path = f"/turns/{quote(target, safe='')}/steps"
    return _post(path, dict, {"verb": verb, "args": dict(args)}, headers=headers)


def turn_id_of(target: TurnId) -> str:
    return target if isinstance(target, str) else target.turn_id


def turn_path(target: TurnId) -> str:
    return quote(turn_id_of(target), safe="")


class Pages(Generic[T]):
    """Where a client is in a list that comes in pages. `limit`: of items in all; None: as many as there are."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self.after: str | None = None
        self.more = limit is None or limit > 0

    @property
    def size(self) -> int:
        return PAGE if self._left is None else min(PAGE, self._left)

    def take(self, page: ListPage[T]) -> tuple[T, ...]:
        items = page.items if self._left is None else page.items[: self._left]
        if self._left is not None:
            self._left -= len(items)
        self.after = page.next
        self.more = page.next is not None and self._left != 0
        return items


def _get(path: str, read: Callable[[Any], T], query: Mapping[str, Any] | None = None, **more: Any) -> HttpCall[T]:
    return HttpCall(method="GET", path=path, read=read, query=query or {}, **more)


def _post(path: str, read: Callable[[Any], T], body: Mapping[str, Any], **more: Any) -> HttpCall[T]:
    return HttpCall(method="POST", path=path, read=read, body=body, **more)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _page_of(kind: Any, *, newest_first: bool = False) -> Callable[[Any], ListPage[Any]]:
    def read(answer: Any) -> ListPage[Any]:
        items = [kind.model_validate(item) for item in answer["data"]]
        return ListPage(items=tuple(reversed(items) if newest_first else items), next=answer["next"])

    return read
