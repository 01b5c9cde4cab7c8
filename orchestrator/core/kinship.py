"""Where a run stands in the tree of those that asked each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

THREAD = "child:"  # a child's thread is called so, and then like the call it answers
BETWEEN = "/"  # no agent has this in its name


@dataclass(frozen=True, kw_only=True, slots=True)
class Kin:
    """Of a child. A run that nobody asked for but the message of its turn has none."""

    parent_run: str
    parent_call: str
    root_run: str
    root_thread: str
    path: str  # the agents from the root down to this one
    max_depth: int  # the least that any of its ancestors allows

    @property
    def depth(self) -> int:
        return self.path.count(BETWEEN)


COLUMNS = tuple(field.name for field in fields(Kin))


def columns(kin: Kin | None) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) if kin is None else asdict(kin)


def taken_from(row: dict[str, Any]) -> Kin | None:
    """Takes its columns out of the row."""
    found = {name: row.pop(name) for name in COLUMNS}
    return None if found["parent_run"] is None else Kin(**found)


def child_of(parent: Mapping[str, str], kin: Kin | None, *, call_id: str, agent: str, max_depth: int) -> Kin:
    """`parent`: the run that asks: its `id`, its `thread_id` and its `agent`. `max_depth`: what that agent allows."""
    return Kin(
        parent_run=parent["id"], parent_call=call_id, root_run=kin.root_run if kin else parent["id"],
        root_thread=kin.root_thread if kin else parent["thread_id"],
        path=f"{kin.path if kin else parent['agent']}{BETWEEN}{agent}",
        max_depth=min(max_depth, kin.max_depth) if kin else max_depth,
    )  # fmt: skip


def home_of(thread_id: str, kin: Kin | None) -> str:
    """The thread whose conversation it belongs to: of a child, that of the root."""
    return thread_id if kin is None else kin.root_thread


def covered(spans: Iterable[tuple[datetime, datetime]]) -> timedelta:
    """How long at least one of them lasted."""
    total, seen_to = timedelta(), None
    for start, end in sorted(spans):
        begins = start if seen_to is None else max(start, seen_to)
        total += max(end - begins, timedelta())
        seen_to = end if seen_to is None else max(end, seen_to)
    return total
