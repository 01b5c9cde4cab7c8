"""What a process that takes part in chaos does before it starts: it may lose and double messages, and lack a guard.

`RIG_MESSAGES` names a file that says which part of its messages a process loses and which it doubles, as long as the
file is there. `RIG_WITHOUT` names a guard of `support.sabotage`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from chordage.tasks import prebuilt
from support.sabotage import GUARDS

MESSAGES, WITHOUT = "RIG_MESSAGES", "RIG_WITHOUT"
LATE = 2.0  # seconds, after which a doubled message comes at the latest
Texts = Sequence[tuple[str, str | None]]


def take_part() -> None:
    patch = pytest.MonkeyPatch()  # never undone: the process ends with it
    if file := os.environ.get(MESSAGES):
        disturb_messages(patch, Path(file))
    if guard := os.environ.get(WITHOUT):
        GUARDS[guard].take_out(patch)


@contextmanager
def take_out(guard: str) -> Iterator[None]:
    """Of this process too, for a while: it takes messages and decisions in, and sends."""
    with pytest.MonkeyPatch.context() as patch:
        GUARDS[guard].take_out(patch)
        yield


def disturb_messages(patch: pytest.MonkeyPatch, file: Path) -> None:
    plain, chance = prebuilt._push, random.Random()

    def push(channel: Any, texts: Texts) -> None:
        try:
            part = json.loads(file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            part = {}
        kept = [each for each in texts if chance.random() >= part.get("lost", 0)]
        again = [(queue, _under_another_tag(text)) for queue, text in kept if chance.random() < part.get("doubled", 0)]
        at_once, late = again[::2], again[1::2]
        if kept:
            plain(channel, [*kept, *at_once])
        if late:
            threading.Timer(chance.uniform(0, LATE), push_again, (channel, late)).start()

    def push_again(channel: Any, late: Texts) -> None:
        with contextlib.suppress(RedisError, OSError):  # Redis is away by now: there is no double
            plain(channel, late)

    patch.setattr(prebuilt, "_push", push)


def _under_another_tag(text: str | None) -> str | None:
    """Kombu knows messages that are not acknowledged by their tag."""
    assert text is not None
    message = json.loads(text)
    message["properties"]["delivery_tag"] = os.urandom(16).hex()
    return json.dumps(message)
