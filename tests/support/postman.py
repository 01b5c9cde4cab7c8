"""A postman between a round's fan-out and the workers: he loses, doubles, spoils and delays the messages of a chord.

Turns of group `will` fan out to `will.tools`, which no worker of the rig serves. What lies there goes through his hands
into `chat.tools`, which one does. The bodies of those chords he has sent to `chore`, and takes from there to `will`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

FAN_OUT, TO_WORKERS = "will.tools", "chat.tools"
BODIES, TO_TURNS = "chore", "will"
TURN_QUEUES = "system,chat,will"  # what a worker of turns serves, for a postman to be needed
TOOL_QUEUES = "chat.tools"


@dataclass
class Letter:
    """A Celery message as it lies in Redis."""

    raw: dict[str, Any]

    @classmethod
    def read(cls, text: str) -> Letter:
        return cls(json.loads(text))

    @property
    def id(self) -> str:
        return str(self.raw["headers"]["id"])

    @property
    def run(self) -> str:
        return str(self._content()[1]["run"])

    @property
    def is_alone(self) -> bool:
        """Sent again by rescue, outside any chord."""
        return bool(self._content()[1].get("alone"))

    @property
    def group(self) -> str:
        return str(self.raw["headers"].get("group"))

    @property
    def body_id(self) -> str:
        return str(self._content()[2]["chord"]["options"]["task_id"])

    def with_body_by(self, queue: str) -> Letter:
        args, kwargs, embed = self._content()
        embed["chord"]["options"]["queue"] = queue
        return self._with([args, kwargs, embed])

    def with_arguments(self, **changed: Any) -> Letter:
        args, kwargs, embed = self._content()
        return self._with([args, {**kwargs, **changed}, embed])

    def undecodable(self) -> Letter:
        return Letter({**self.raw, "content-type": "application/x-python-serialize"})

    def text(self) -> str:
        return json.dumps(self.raw)

    def _content(self) -> list[Any]:
        content: list[Any] = json.loads(base64.b64decode(self.raw["body"]))
        return content

    def _with(self, content: list[Any]) -> Letter:
        return Letter({**self.raw, "body": base64.b64encode(json.dumps(content).encode()).decode()})


Trick = Callable[["Postman", list[Letter]], list[Letter]]


@dataclass
class Postman:
    redis: Redis
    prefix: str  # of the broker's keys
    header_tricks: dict[str, Trick] = field(default_factory=dict)  # by run
    body_tricks: dict[str, Trick] = field(default_factory=dict)  # by run
    size: int = 3  # headers of a round
    waiting: dict[str, list[Letter]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def go_round(self) -> None:
        while text := self.redis.rpop(self.prefix + FAN_OUT):
            self._header(Letter.read(text))
        while text := self.redis.rpop(self.prefix + BODIES):
            letter = Letter.read(text)
            trick = self.body_tricks.pop(letter.run, deliver)
            self.put(TO_TURNS, trick(self, [letter]))

    def _header(self, letter: Letter) -> None:
        if letter.is_alone:
            self.put(TO_WORKERS, [letter])
            return
        round_ = self.waiting.setdefault(letter.group, [])
        round_.append(letter.with_body_by(BODIES))
        if len(round_) == self.size:
            trick = self.header_tricks.pop(letter.run, deliver)
            self.put(TO_WORKERS, trick(self, self.waiting.pop(letter.group)))

    def put(self, queue: str, letters: list[Letter]) -> None:
        for letter in letters:
            self.redis.lpush(self.prefix + queue, letter.text())


def deliver(postman: Postman, letters: list[Letter]) -> list[Letter]:
    return letters
