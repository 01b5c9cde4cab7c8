"""Waiting until every member is ready; one that is not has its last words shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet.member import Member

READY_WITHIN = 60.0
LOOK = 0.05


def wait_until_ready(members: Sequence[Member], check: Callable[[], None], *, patience: float = READY_WITHIN) -> None:
    """Raises Unavailable when one ends, or takes too long. `check` is called while waiting, and may raise."""
    give_up = time.monotonic() + patience
    waiting = list(members)
    while waiting := [member for member in waiting if not member.ready]:
        for member in waiting:
            if not member.running:
                raise Unavailable(_did_not_start(member, f"ended with code {member.code}"))
            if time.monotonic() > give_up:
                raise Unavailable(_did_not_start(member, f"was not ready within {patience:g} s"))
        check()
        time.sleep(LOOK)


def _did_not_start(member: Member, how: str) -> str:
    said = "".join(f"\n  {line}" for line in member.last_words().splitlines())
    return f"{member.name} {how}; the end of {member.log}:{said or ' it is empty'}"
