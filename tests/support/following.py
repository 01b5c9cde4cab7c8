"""Followers of server-sent events: what came, and the text as the one rule of clients puts it together."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from chordage.orchestrator.core.run_events import position_of


@dataclass(slots=True)
class Sent:
    """One event as it came."""

    id: str | None
    event: str
    data: dict[str, Any] = field(default_factory=dict)


def parsed(lines: Iterator[str]) -> Iterator[Sent | str]:
    """Events, and comments and fields that stand alone as text."""
    block: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            yield line
        elif line:
            name, _, value = line.partition(": ")
            block[name] = value
        elif "data" in block:
            yield Sent(id=block.get("id"), event=block["event"], data=json.loads(block["data"]))
            block = {}
        elif block:
            yield f"retry {block['retry']}"
            block = {}


@contextmanager
def following(
    client: httpx.Client, path: str, after: str | None = None, **params: str
) -> Iterator[Iterator[Sent | str]]:
    headers = {} if after is None else {"Last-Event-ID": after}
    with client.stream("GET", path, headers=headers, params=params, timeout=60) as response:
        assert response.status_code == 200, response.read()
        yield parsed(response.iter_lines())


def everything(client: httpx.Client, path: str, after: str | None = None, **params: str) -> list[Sent]:
    """Until the stream ends."""
    with following(client, path, after, **params) as events:
        return [event for event in events if isinstance(event, Sent)]


class Reader:
    """What a client knows of a run. A delta counts if its attempt is the current one and its offset is the length of
    what is there; a reply on record overwrites.
    """

    def __init__(self) -> None:
        self.facts: list[Sent] = []
        self.notes: list[Sent] = []
        self.texts: dict[int, str] = {}
        self.reasonings: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.resets = 0
        self.gaps = 0

    @property
    def last(self) -> str | None:
        return self.facts[-1].id if self.facts else None

    @property
    def is_over(self) -> bool:
        return bool(self.facts) and self.facts[-1].event == "turn.ended"

    def read(self, sent: Sent) -> None:
        if sent.id is None:
            self.notes.append(sent)
            if sent.event.startswith("live."):
                self._read_text(sent.event, sent.data)
            return
        assert not self.facts or position_of(sent.id) > position_of(self.facts[-1].id), "a fact came twice"
        self.facts.append(sent)
        if sent.event == "model.replied":
            self.texts[sent.data["step"]] = sent.data["text"]
            self.reasonings[sent.data["step"]] = sent.data.get("reasoning", "")

    def _read_text(self, kind: str, data: dict[str, Any]) -> None:
        step, attempt = data["step"], data["attempt"]
        match kind:
            case "live.snapshot":
                self.texts[step], self.attempts[step] = data["text"], attempt
                self.reasonings[step] = data.get("reasoning", "")
            case "live.reset":
                self.texts[step], self.reasonings[step], self.attempts[step] = "", "", attempt
                self.resets += 1
            case "live.delta" | "live.reasoning":
                known = self.texts if kind == "live.delta" else self.reasonings
                current = self.attempts.setdefault(step, attempt)
                is_next = attempt == current and data["offset"] == len(known.get(step, ""))
                if is_next:
                    known[step] = known.get(step, "") + data["text"]
                else:
                    self.gaps += 1


def read_on(reader: Reader, client: httpx.Client, path: str, most: int | None = None) -> None:
    """Until the stream ends, or `most` events have come. Text that was shown before is not known any more."""
    on_record = {sent.data["step"] for sent in reader.facts if sent.event == "model.replied"}
    reader.texts = {step: text for step, text in reader.texts.items() if step in on_record}
    reader.reasonings = {step: text for step, text in reader.reasonings.items() if step in on_record}
    reader.attempts.clear()
    with following(client, path, reader.last) as events:
        for number, event in enumerate(each for each in events if isinstance(each, Sent)):
            reader.read(event)
            if most is not None and number + 1 >= most:
                return


@contextmanager
def reading(client: httpx.Client, path: str) -> Iterator[Reader]:
    """In a thread, to the end of the stream, which is waited for when the block is left."""
    reader = Reader()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            read_on(reader, client, path)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield reader
    thread.join(timeout=120)
    assert not thread.is_alive(), f"the stream has no end: {[sent.event for sent in reader.facts]}"
    if failures:
        raise failures[0]


class SilentStreams:
    """Streams that end at once: for tests that ask every endpoint and would wait for ever. Implements EventStreams."""

    too_slow = RuntimeError
    followers = 0

    async def _nothing(self, *_about: object, **_more: object) -> AsyncGenerator[Any, None]:
        for nothing in ():
            yield nothing

    run_events = turn_events = thread_events = fleet_events = follow = _nothing

    def end_followers(self) -> None: ...
    def stop(self) -> None: ...
