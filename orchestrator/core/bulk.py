"""One action on many turns or deliveries: what was asked for, and how far it has come.

The targets are passed in the order of their ids, each once. Turns are cancelled from the newest to the oldest, so that
none starts because the one before it ended; they are retried, and replies are sent again, in the order they came.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chordage.orchestrator.core.audit import Actor
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.groups import Group

CHOSEN_MAX = 1000  # ids that may be named one by one
REASON_MAX = 2000
EXACT = 10_000  # a count above it is an estimate
BEGINNING = ""  # the position of a job that has passed no target


class BulkAction(StrEnum):
    CANCEL = "cancel"  # turns that are not done
    RETRY = "retry"  # turns that ended without an answer
    REDELIVER = "redeliver"  # dead letters

    @property
    def goes_up(self) -> bool:
        """From the oldest to the newest."""
        return self is not BulkAction.CANCEL


class BulkState(StrEnum):
    OPEN = "open"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkCount:
    number: int
    is_estimate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkRequest:
    """What a caller asks for. `wanted`: the filter as JSON; `chosen`: ids, instead of it. Neither: all dead letters.

    `space`, `agents`, `groups`: what the caller reaches and may address; None: all.
    """

    action: BulkAction
    by: Actor
    wanted: dict[str, Any] | None = None
    chosen: tuple[str, ...] | None = None
    query: str | None = None  # the filter as it was written in a search box
    reason: str | None = None
    space: str | None = None
    agents: frozenset[str] | None = None
    groups: frozenset[Group] | None = None
    key: str | None = None  # the same request under the same key is one job

    @property
    def digest(self) -> str:
        """Tells whether two requests ask for the same."""
        asked = [self.action.value, self.wanted, self.chosen and list(self.chosen), self.reason, self.space]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkJob:
    """`position`: the target that was passed last; `done` and `refused` count those up to it."""

    id: str
    action: BulkAction
    wanted: dict[str, Any] | None
    chosen: tuple[str, ...] | None
    query: str | None
    reason: str | None
    space: str | None
    agents: frozenset[str] | None
    groups: frozenset[Group] | None
    asked_by: str
    address: str | None
    request_key: str | None
    digest: str
    counted: int
    is_estimate: bool
    state: BulkState
    position: str
    done: int
    refused: int
    created_at: datetime
    ended_at: datetime | None


def check_request(request: BulkRequest) -> None:
    if request.chosen is not None and request.wanted is not None:
        raise InvalidMessage("ids: give a filter or ids, not both", field="ids")
    if request.chosen is not None and not request.chosen:
        raise InvalidMessage("ids: name at least one", field="ids")
    if request.chosen is not None and len(request.chosen) > CHOSEN_MAX:
        problem = f"ids: {len(request.chosen)} are too many, the most is {CHOSEN_MAX}: use a filter"
        raise InvalidMessage(problem, field="ids")
    if request.action is BulkAction.REDELIVER:
        if request.wanted is not None:
            raise InvalidMessage("filter: dead letters have none: give ids, or neither for all of them", field="filter")
    elif request.chosen is None and request.wanted is None:
        raise InvalidMessage("filter: give a filter or ids", field="filter")
    if request.reason is not None and len(request.reason) > REASON_MAX:
        raise InvalidMessage(f"reason: at most {REASON_MAX} characters", field="reason")


def targets_of(action: BulkAction, ids: Iterable[str]) -> tuple[str, ...]:
    """Named ids as targets: each once, in the order in which the job passes them."""
    wanted = {one.strip() for one in ids if one.strip()}
    if action is BulkAction.REDELIVER:
        if wrong := sorted(one for one in wanted if not (one.isascii() and one.isdecimal() and len(one) < 19)):
            raise InvalidMessage(f"ids: {wrong[0]!r:.80} is not the number of a delivery", field="ids")
        wanted = {target_of(int(one)) for one in wanted}
    return tuple(sorted(wanted, reverse=not action.goes_up))


def target_of(delivery: int) -> str:
    """Written so that the order of the texts is that of the numbers."""
    return f"{delivery:019d}"


def delivery_of(target: str) -> int:
    return int(target)


def shown_target(action: BulkAction, target: str) -> str:
    return str(delivery_of(target)) if action is BulkAction.REDELIVER else target


def behind(job: BulkJob, targets: Iterable[str]) -> list[str]:
    """Those of these targets that are not passed yet."""
    if job.action.goes_up:
        return [target for target in targets if target > job.position]
    return [target for target in targets if job.position == BEGINNING or target < job.position]


def estimate(found: int, looked_at: int, of: int) -> BulkCount:
    """From the part that was looked at, to two figures."""
    number = max(found, round(found * max(of, looked_at) / looked_at)) if looked_at else 0
    digits = max(0, len(str(number)) - 2)
    return BulkCount(number=round(number, -digits), is_estimate=True)


def recorded(request: BulkRequest, count: BulkCount) -> Mapping[str, Any]:
    """For the record of the operator: without texts."""
    return {
        "action": request.action.value,
        "count": count.number,
        "estimate": count.is_estimate,
        "chosen": request.chosen is not None,
    }
