"""What happens to a turn, as one ordered list of events. Streams, the clients' protocols and the console show nothing
else of a run that is at work.

A *fact* is a committed row of the journal and has an id, by which a reader resumes. A *note* is live, has no id, and
may be lost or doubled. Whatever notes a reader has missed, the facts alone give the whole transcript.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

LONGEST_NUMBER = 18  # digits that every database holds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    id: str | None  # `<journal row>-<number>`; None: a note
    kind: str
    thread_id: str | None = None
    turn_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    step: int | None = None
    at: datetime | None = None
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def is_fact(self) -> bool:
        return self.id is not None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def position_of(event_id: str) -> tuple[int, int]:
    """The journal row and the number, in which facts are in order. Raises ValueError where it is no such id."""
    row, separator, number = event_id.partition("-")
    is_short = len(row) <= LONGEST_NUMBER and len(number) <= LONGEST_NUMBER
    if not (separator and is_short and _is_number(row) and _is_number(number)):
        raise ValueError(f"{event_id!r:.80} is not the id of an event: give `<journal row>-<number>`, as it came")
    return int(row), int(number)


# What is shown of an event without its texts: states, times, names and counts. What is not listed is left out, so that
# a field which is added later is not shown by accident.
_PLAIN = frozenset(
    {"action", "agent", "asker", "attempt", "call", "call_id", "calls", "channel", "child", "children", "code",
     "commands", "created_at", "decision", "digest", "disposition", "ends", "entries", "expires_at", "group", "id",
     "into", "model", "offset", "on_expiry", "origin", "parent", "questions", "reason", "result", "run", "run_id",
     "seconds", "sender", "source", "status", "step", "stop", "suspension", "tenant", "tool", "turn", "upto",
     "usage", "why", "worker", "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"}
)  # fmt: skip
_TEXT_OF = {"output.refused": {"why"}, "compaction.failed": {"why"}, "call.decided": {"reason"}}


def without_texts(event: RunEvent) -> RunEvent | None:
    """For a caller who may not see what was said: without texts, arguments and results. None: it is nothing else."""
    if event.kind in {"live.delta", "live.reasoning", "live.snapshot"}:
        return None
    hidden = _TEXT_OF.get(event.kind, set())
    return replace(event, data={name: value for name, value in _plain(event.data).items() if name not in hidden})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name in _PLAIN}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
