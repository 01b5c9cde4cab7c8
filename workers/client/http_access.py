"""How a runner reaches its turn over HTTP: the same loop as over the database or Celery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from chordage.orchestrator.core.errors import Forbidden
from chordage.workers.client import calls
from chordage.workers.client.calls import HttpCall
from chordage.workers.client.runner import Waits

FIRST_POLL, LONGEST_POLL = 0.05, 1.0  # seconds between two reads of a turn


class HttpAccess:
    """`send`: a request of a client, to its answer. All of the turn is on the server; this object keeps nothing."""

    def __init__(self, send: Callable[[HttpCall[Any]], Any], sleep: Callable[[float], object] = time.sleep) -> None:
        self._send = send
        self._sleep = sleep

    def submit(self, fields: Mapping[str, Any]) -> str:
        more = {name: value for name, value in fields.items() if name != "text"}
        return str(self._send(calls.submit(fields["text"], more)).turn_id)

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(
            self._send(
                calls.step(fields["turn"], fields["verb"], fields["args"], if_rev=fields["if_rev"], key=fields["key"])
            )
        )

    def read(self, turn: str) -> dict[str, Any]:
        state = dict(self._send(calls.stepped(turn)))
        if not state.pop("payloads", True):
            raise Forbidden("a runner reads replies: its key needs the scope 'payloads'", scope="payloads")
        return state

    @contextmanager
    def subscribed(self, turn_id: str) -> Iterator[Waits]:  # noqa: ARG002 - the turn is read again and again
        yield _Polling(self._sleep)

    def close(self) -> None:
        """The client belongs to the program."""


class _Polling:
    """Often at first, for a reply may come soon, and less often the longer it takes."""

    def __init__(self, sleep: Callable[[float], object]) -> None:
        self._sleep = sleep
        self._pause = FIRST_POLL

    def wait(self, seconds: float) -> None:
        self._sleep(min(seconds, self._pause))
        self._pause = min(LONGEST_POLL, self._pause * 1.5)
