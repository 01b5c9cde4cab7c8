"""An answer shown on the terminal as it comes. Implements the Events port for one turn in this process."""

from __future__ import annotations

import threading
from typing import Any

from chordage.workers.cli.output import say


class Streamed:
    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._text = ""  # of the reply that is being made
        self._last = ""  # all that was shown of the last reply
        self._tools: dict[str, str] = {}  # the names of calls
        self._lock = threading.Lock()

    def emit(self, run_id: str, kind: str, **data: Any) -> None:  # noqa: ARG002 - there is one run
        if not self._shown:
            return
        with self._lock:
            match kind:
                case "model.delta":
                    say(data["text"], nl=False)
                    self._text += data["text"]
                case "model.reset":
                    self._begin_again()
                case "model.replied":
                    self._finish_line()
                case "tool.started":
                    self._tools[data["call"]] = data["tool"]
                    say(f"· {data['tool']}", dim=True, err=True)
                case "tool.progress":
                    say(f"  {self._tools.get(data['call'], '')} {data['text']}", dim=True, err=True)

    def turn_done(self, turn_id: str) -> None: ...

    def end(self) -> str:
        """What is on the terminal of the last reply."""
        with self._lock:
            self._finish_line()
            return self._last

    def _begin_again(self) -> None:
        if self._text:
            say()
            say("· the reply broke off and is begun again", dim=True, err=True)
            self._text = ""

    def _finish_line(self) -> None:
        if self._text:
            say()
            self._last, self._text = self._text, ""
