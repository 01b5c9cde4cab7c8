"""Probes of `chordage doctor`, made in the process of a test."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis import Redis

from chordage.config.settings import load
from chordage.orchestrator.core.doctor import ProbeAnswer, Severity, Symptom
from chordage.orchestrator.store.database import Store
from chordage.workers.doctor.context import DoctorContext, RoomFault


def real_now() -> datetime:
    return datetime.now(UTC)


def context_of(
    store: Store,
    room: Path,
    *,
    now: Callable[[], datetime] = real_now,
    redis: Redis | None = None,
    faults: tuple[RoomFault, ...] = (),
    **settings: Any,
) -> DoctorContext:
    values = {"room": room, "database_url": store.url, **settings}
    return DoctorContext(settings=load(**values), store=store, redis=redis, now=now, room=lambda: list(faults))


def only(answer: ProbeAnswer) -> Symptom:
    (symptom,) = answer.symptoms
    return symptom


def is_error(symptom: Symptom) -> bool:
    return symptom.severity is Severity.ERROR
