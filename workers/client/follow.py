"""The events of a turn as a stream brings them, whatever happens to the connection: none missing, none twice.

A *fact* has an id and is on record; the stream continues behind the last one. What the model is just saying comes in
pieces without ids. After a break the server sends all of that text once more, and only what is new of it is passed on.
So the pieces (`live.delta`) since the last `live.reset` are the text of the reply that is to come, at any time, and
those of `live.reasoning` are what the model reasoned before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.client import calls
from chordage.workers.client.attempts import Attempts
from chordage.workers.client.calls import HttpCall, TurnId
from chordage.workers.client.sizes import ANSWER_BYTES, too_large

DELTA, RESET, SNAPSHOT, REASONING = "live.delta", "live.reset", "live.snapshot", "live.reasoning"
REPLIED, ENDED, WAITING = "model.replied", "turn.ended", "turn.waiting"
JOINED = frozenset({"merged", "steered"})  # a turn that became part of another: the events of that one follow


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedEvent:
    kind: str
    id: str | None  # of a fact; None: a piece of text, progress and the like
    thread_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    step: int | None = None
    at: datetime | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The next piece of what the model is saying; empty for all other events."""
        return str(self.data.get("text") or "") if self.kind == DELTA else ""

    @property
    def reasoning(self) -> str:
        """The next piece of what the model reasons before it speaks; empty for all other events."""
        return str(self.data.get("text") or "") if self.kind == REASONING else ""

    @property
    def ends_turn(self) -> bool:
        return self.kind == ENDED and self.data.get("disposition") not in JOINED

    @property
    def is_waiting(self) -> bool:
        """The turn waits for a decision: `data["questions"]`."""
        return self.kind == WAITING


class Following:
    """Of one turn, over all connections of its stream."""

    def __init__(
        self, target: TurnId, after: str | None, retries: int, *, stop_at_questions: bool, max_bytes: int = ANSWER_BYTES
    ) -> None:
        self._target = target
        self._stop_at_questions = stop_at_questions
        self._last_id = after
        self._retries = retries
        self._attempts = Attempts(retries)
        self._max_bytes = max_bytes
        self._frames = _Frames(max_bytes)
        self._texts: dict[str | None, _LiveText] = {}  # by run: sub-agents speak in between
        self.is_over = False

    def request(self) -> HttpCall[None]:
        """For the events behind the last one. What a connection before it left half sent is dropped."""
        self._frames = _Frames(self._max_bytes)
        return calls.events(self._target, after=self._last_id, stop_at_questions=self._stop_at_questions)

    def begin(self, response: httpx.Response) -> None:
        """204: the turn has ended, and there is nothing behind the last event."""
        self.is_over = response.status_code == httpx.codes.NO_CONTENT

    def take(self, chunk: bytes) -> Iterator[FollowedEvent]:
        for frame in self._frames.feed(chunk):
            event = _event_of(frame)
            if self.is_over or event is None or (event.id is not None and not _is_behind(event.id, self._last_id)):
                continue
            self._attempts = Attempts(self._retries)  # something has come
            text = self._texts.setdefault(event.run_id, _LiveText())
            yield from text.take(event)
            if event.id is not None:
                self._last_id = event.id
            self.is_over = event.ends_turn or (self._stop_at_questions and event.is_waiting)

    def pause_after(self, failure: httpx.TransportError | httpx.Response | None) -> float:
        """Until the next connection. None: the stream ended before its last event, as at a restart of the server."""
        if failure is None:
            failure = httpx.RemoteProtocolError(f"the events of turn {calls.turn_id_of(self._target)} broke off")
        return self._attempts.pause_after(failure)


@dataclass(frozen=True, slots=True)
class _Frame:
    event: str
    data: str
    id: str | None


class _Frames:
    """Server-sent events out of bytes. Only line feeds end a line: texts may hold every other separator."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0  # of the event that is coming
        self._rest: list[bytes] = []  # of the line that is coming
        self._lines: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[_Frame]:
        """Raises AnswerTooLarge."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            text = b"".join(self._rest).removesuffix(b"\r").decode("utf-8", "replace")
            self._rest = []
            if text:
                self._lines.append(text)
                continue
            frame = self._frame() if self._lines else None
            self._lines, self._size = [], 0
            if frame is not None:
                yield frame
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            raise too_large("an event of the stream", self._max_bytes)
        self._rest.append(part)

    def _frame(self) -> _Frame | None:
        fields: dict[str, list[str]] = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        if "data" not in fields:
            return None  # a comment, or the time until the next connection
        ids = fields.get("id")
        return _Frame(fields.get("event", [""])[-1], "\n".join(fields["data"]), ids[-1] if ids else None)


def _event_of(frame: _Frame) -> FollowedEvent | None:
    try:
        body = json.loads(frame.data)
    except ValueError as error:
        raise Unavailable(f"the stream holds what is no JSON: {frame.data!r:.80}") from error
    if not isinstance(body, dict):
        return None
    about = {name: body.pop(name, None) for name in ("thread_id", "turn_id", "run_id", "agent", "step")}
    at, kind = body.pop("at", None), body.pop("kind", frame.event)
    moment = datetime.fromisoformat(at) if isinstance(at, str) else None
    return FollowedEvent(kind=str(kind), id=frame.id, at=moment, data=body, **about)


def _is_behind(fact: str, last: str | None) -> bool:
    """Whether its id comes after `last`. Ids are `<journal row>-<number>`."""
    return last is None or _place(fact) > _place(last)


def _place(fact: str) -> tuple[int, int]:
    row, _, number = fact.partition("-")
    try:
        return int(row), int(number or 0)
    except ValueError as error:
        raise Unavailable(f"the stream holds the id {fact!r:.80}, which is none of a fact") from error


class _LiveText:
    """What the model has said so far in its current attempt at a step, and what it has reasoned before."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None  # step, attempt
        self._shown = {REASONING: "", DELTA: ""}

    def take(self, event: FollowedEvent) -> Iterator[FollowedEvent]:
        text = event.data.get("text")
        if event.kind == REPLIED:
            yield from self._settle(event, text)
            yield event
        elif event.kind == SNAPSHOT and isinstance(text, str):
            yield from self._grow(event, REASONING, 0, str(event.data.get("reasoning") or ""))
            yield from self._grow(event, DELTA, 0, text)
        elif event.kind in {DELTA, REASONING} and isinstance(text, str):
            yield from self._grow(event, event.kind, int(event.data.get("offset") or 0), text)
        elif event.kind == RESET:
            yield from self._reset(event, _key_of(event))
        else:
            yield event

    def _grow(self, event: FollowedEvent, kind: str, offset: int, text: str) -> Iterator[FollowedEvent]:
        key = _key_of(event)
        if self._key is not None and key < self._key:
            return  # of an attempt that is over
        if key != self._key:
            yield from self._reset(event, key)
        have = len(self._shown[kind])
        if offset <= have < offset + len(text):
            yield self._piece(event, kind, text[have - offset :])

    def _settle(self, event: FollowedEvent, text: object) -> Iterator[FollowedEvent]:
        """The reply is on record: what was missing of it, or all of it."""
        if isinstance(text, str):
            whole = {REASONING: str(event.data.get("reasoning") or ""), DELTA: text}
            has_text = bool(self._shown[DELTA])
            is_late = has_text and self._shown[REASONING] != whole[REASONING]
            if is_late or not all(whole[kind].startswith(shown) for kind, shown in self._shown.items()):
                yield from self._reset(event, self._key)
            for kind, said in whole.items():
                if rest := said[len(self._shown[kind]) :]:
                    yield self._piece(event, kind, rest)
        self._begin(None)

    def _reset(self, event: FollowedEvent, key: tuple[int, int] | None) -> Iterator[FollowedEvent]:
        if any(self._shown.values()):
            yield _note(event, RESET, {"step": event.step})
        self._begin(key)

    def _begin(self, key: tuple[int, int] | None) -> None:
        self._key, self._shown = key, {REASONING: "", DELTA: ""}

    def _piece(self, event: FollowedEvent, kind: str, text: str) -> FollowedEvent:
        offset = len(self._shown[kind])
        self._shown[kind] += text
        return _note(event, kind, {"step": event.step, "offset": offset, "text": text})


def _key_of(event: FollowedEvent) -> tuple[int, int]:
    step = event.step if event.step is not None else event.data.get("step")
    return int(step or 0), int(event.data.get("attempt") or 0)


def _note(event: FollowedEvent, kind: str, data: dict[str, Any]) -> FollowedEvent:
    return FollowedEvent(
        kind=kind, id=None, thread_id=event.thread_id, turn_id=event.turn_id, run_id=event.run_id, agent=event.agent,
        step=event.step, at=event.at, data=data,
    )  # fmt: skip
