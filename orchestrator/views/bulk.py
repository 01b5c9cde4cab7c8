"""Bulk jobs: what was asked for, how far they have come, and what they refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.bulk import BulkAction, BulkJob, BulkState
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.store import bulk
from chordage.orchestrator.store.bulk import BulkRefusal
from chordage.orchestrator.store.database import Store, Tx
from chordage.orchestrator.views.conversion import view_of

__all__ = ["BulkRefusal", "BulkView", "bulk_job", "bulk_jobs", "bulk_refusals", "bulk_view"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkView:
    """`counted`: when it was asked for. Targets that were done by others meanwhile are in neither `done` nor `refused`
    if the search did not find them any more.
    """

    id: str
    action: BulkAction
    filter: dict[str, Any] | None
    query: str | None  # the filter as it was written in the console
    chosen: int | None  # how many ids were named
    reason: str | None
    counted: int
    is_estimate: bool
    state: BulkState
    done: int
    refused: int
    asked_by: str
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_open(self) -> bool:
        return self.state is BulkState.OPEN


def bulk_view(job: BulkJob) -> BulkView:
    return view_of(BulkView, job, filter=job.wanted, chosen=None if job.chosen is None else len(job.chosen))


def bulk_job(store: Store, job_id: str, *, space: str | None = None) -> BulkView:
    """A caller with a `space` finds only jobs of it."""
    with store.read() as tx:
        return bulk_view(_load(tx, job_id, space))


def bulk_jobs(store: Store, *, limit: int = 50, before: str | None = None, space: str | None = None) -> list[BulkView]:
    """Newest first. `before`: the id of the last on the page before."""
    with store.read() as tx:
        return [bulk_view(job) for job in bulk.newest(tx, limit=limit, space=space, before=before)]


def bulk_refusals(
    store: Store, job_id: str, *, limit: int = 50, after: str | None = None, space: str | None = None
) -> list[BulkRefusal]:
    """By the ids of the targets."""
    with store.read() as tx:
        _load(tx, job_id, space)
        return bulk.refusals(tx, job_id, limit=limit, after=after)


def _load(tx: Tx, job_id: str, space: str | None) -> BulkJob:
    job = bulk.load(tx, job_id)
    if job is None or (space is not None and job.space != space):
        raise NotFound(f"there is no bulk job {job_id!r:.80}")
    return job
