"""Deletes old turns a few at a time, so that turns at work do not notice.

Each batch is a transaction of its own, and the pause behind it is as long as it took. After one that took longer than
it should, because the database is busy, the next has half as many turns.

A process may die at any line: what a batch has deleted is whole, and the next pass finds the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import structlog

from chordage.orchestrator.core.pruning import PruneLimits
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import pruning

log = structlog.get_logger()

LOOKS = 500  # turns that are looked at for one batch or more
GOOD_BATCH = 0.1  # seconds
SMALLEST, LARGEST = 25, 200  # turns of one batch: with fewer, most of its time is not theirs
PASS = 0.3  # seconds of one sweep
AGAIN = timedelta(minutes=10)  # between two looks at all old turns


def prune_some(rt: Runtime, limits: PruneLimits) -> None:
    """What can be deleted in a moment: the next sweep continues behind it."""
    patrol = rt.patrol
    if patrol.prune_at is not None and rt.now() < patrol.prune_at:
        return
    patrol.prune_at = None
    give_up = time.monotonic() + PASS
    rows: Counter[str] = Counter()
    while time.monotonic() < give_up:
        more = prune_window(rt, limits, rows, lambda: time.monotonic() < give_up)
        if not more:
            rows += remove_lists(rt, limits) + remove_versions(rt, limits)
            patrol.pruned_to, patrol.prune_at = "", rt.now() + AGAIN
            break
    if rows:
        log.info("old turns were pruned", **rows)


def prune_window(rt: Runtime, limits: PruneLimits, rows: Counter[str], proceeds: Callable[[], bool]) -> bool:
    """Delete what may go of the turns behind those that were looked at last. False: none of them is old enough."""
    patrol = rt.patrol
    with rt.store.read() as tx:
        window = pruning.oldest(tx, limits, patrol.pruned_to, LOOKS)
    if window.last is None:
        return False
    left = list(window.turn_ids)
    while left and proceeds():
        batch, left = left[: patrol.prune_batch], left[patrol.prune_batch :]
        began = time.monotonic()
        with Unit(rt) as unit:
            rows.update(pruning.remove(unit.tx, limits, batch))
        seconds = time.monotonic() - began
        size = len(batch) // 2 if seconds > GOOD_BATCH else patrol.prune_batch + 10
        patrol.prune_batch = max(SMALLEST, min(LARGEST, size))
        patrol.pruned_to = batch[-1]
        time.sleep(seconds)
    if not left:
        patrol.pruned_to = window.last
    return True


def remove_versions(rt: Runtime, limits: PruneLimits) -> Counter[str]:
    with Unit(rt) as unit:
        return pruning.remove_versions(unit.tx, limits.before)


def remove_lists(rt: Runtime, limits: PruneLimits) -> Counter[str]:
    with rt.store.read() as tx:
        job_ids, refusal_ids = pruning.old_lists(tx, limits.before, LOOKS)
    if not job_ids and not refusal_ids:
        return Counter()
    with Unit(rt) as unit:
        return pruning.remove_lists(unit.tx, job_ids, refusal_ids)
