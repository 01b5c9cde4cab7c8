"""Carries the probes out, each in a thread of its own and within its own time.

A probe that fails or takes too long is a finding, and stops no other. What needs the database or Redis is left out
where that does not answer: one finding says so, instead of ten. A thread whose probe was given up stays until its own
limits end it; the same probe is not begun again beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from chordage.config.settings import Settings
from chordage.orchestrator.core.doctor import (
    DoctorReport,
    ProbeAnswer,
    ProbeRecord,
    Severity,
    Symptom,
    report_of,
)
from chordage.orchestrator.core.errors import UserError
from chordage.orchestrator.store.database import Store
from chordage.workers.bootstrap import quick_redis_from
from chordage.workers.doctor import fleet, machine, services, work
from chordage.workers.doctor.context import DoctorContext, Look, RoomFault

log = structlog.get_logger()

SECONDS = 5.0
OF_IMPORTS = 30.0  # the code of the room is imported
MAX_AGE = timedelta(seconds=30)  # of a report that a page shows
DATABASE, REDIS = "database", "redis"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorProbe:
    """`needs`: services without which it has nothing to look at. `remedy`: for when it cannot be made."""

    name: str
    look: Look
    needs: tuple[str, ...] = ()
    seconds: float = SECONDS
    remedy: str = "chordage status"
    severity: Severity = Severity.WARNING


PROBES: tuple[DoctorProbe, ...] = (
    DoctorProbe(name="settings", look=machine.look_at_settings, seconds=OF_IMPORTS, remedy="chordage check"),
    DoctorProbe(name="disks", look=machine.look_at_disks, remedy="df -h"),
    DoctorProbe(name="this folder", look=machine.look_at_local_fleet),
    DoctorProbe(name=DATABASE, look=services.look_at_database, remedy="chordage migrate", severity=Severity.ERROR),
    DoctorProbe(name=REDIS, look=services.look_at_redis, remedy="valkey-cli PING", severity=Severity.ERROR),
    DoctorProbe(name="schema", look=services.look_at_schema, needs=(DATABASE,), remedy="chordage migrate --check"),
    DoctorProbe(name="connections", look=services.look_at_connections, needs=(DATABASE,)),
    DoctorProbe(name="clocks", look=fleet.look_at_clocks, needs=(DATABASE, REDIS), remedy="timedatectl status"),
    DoctorProbe(name="processes", look=fleet.look_at_processes, needs=(DATABASE, REDIS), seconds=15.0),
    DoctorProbe(name="work", look=work.look_at_work, needs=(DATABASE, REDIS), remedy="chordage why"),
    DoctorProbe(
        name="deliveries", look=work.look_at_deliveries, needs=(DATABASE,), remedy="chordage deliveries --dead"
    ),
    DoctorProbe(name="bus", look=work.look_at_bus, needs=(DATABASE, REDIS), remedy="chordage bus status"),
    DoctorProbe(name="traces", look=work.look_at_traces, needs=(DATABASE,), remedy="chordage check"),
    DoctorProbe(name="schedules and channels", look=work.look_at_sources, needs=(DATABASE,), remedy="chordage pulse"),
    DoctorProbe(name="keys", look=work.look_at_keys, needs=(DATABASE,), remedy="chordage keys list"),
)


@dataclass(slots=True)
class Doctor:
    """`examine` makes a report; `latest` has the last one, for pages that must not wait."""

    context: DoctorContext
    probes: Sequence[DoctorProbe] = PROBES
    _running: dict[str, Future[ProbeAnswer]] = field(default_factory=dict)
    _one: threading.Lock = field(default_factory=threading.Lock)  # an examination at a time
    _latest: DoctorReport | None = None
    _renewing: threading.Lock = field(default_factory=threading.Lock)

    def examine(self) -> DoctorReport:
        asked_at = self.context.now()
        with self._one:
            if self._latest is None or self._latest.made_at < asked_at:  # else another has just made one
                self._latest = self._examined()
            return self._latest

    def latest(self) -> DoctorReport | None:
        """None: the first is being made. One that is old is made anew, behind this call."""
        latest = self._latest
        is_old = latest is None or self.context.now() - latest.made_at > MAX_AGE
        if is_old and self._renewing.acquire(blocking=False):
            threading.Thread(target=self._renew, name="chordage-doctor", daemon=True).start()
        return latest

    def _renew(self) -> None:
        try:
            self.examine()
        except Exception:
            log.exception("the fleet could not be examined")
        finally:
            self._renewing.release()

    def _examined(self) -> DoctorReport:
        away: set[str] = set()
        records: list[ProbeRecord] = []
        symptoms: list[Symptom] = []
        for wave in (False, True):  # the services first, then what needs them
            begun = time.monotonic()
            probes = [probe for probe in self.probes if bool(probe.needs) is wave]
            made = [probe for probe in probes if not away.intersection(probe.needs)]
            futures = {probe.name: self._begin(probe) for probe in made}
            for probe in probes:
                if probe.name not in futures:
                    without = ", ".join(sorted(away.intersection(probe.needs)))
                    records.append(ProbeRecord(probe=probe.name, summary=f"not looked at: no {without}", seconds=0.0))
                    continue
                answer = _answer(probe, futures[probe.name], begun)
                if isinstance(answer, Symptom):
                    away.add(probe.name)
                    answer = ProbeAnswer(summary="not known", symptoms=(answer,))
                took = round(time.monotonic() - begun, 3)
                records.append(ProbeRecord(probe=probe.name, summary=answer.summary, seconds=took))
                symptoms += answer.symptoms
        return report_of(self.context.now(), records, symptoms)

    def _begin(self, probe: DoctorProbe) -> Future[ProbeAnswer]:
        running = self._running.get(probe.name)
        if running is None or running.done():
            running = self._running[probe.name] = Future()
            name = f"chordage-doctor-{probe.name}"
            threading.Thread(target=_fill, args=(running, probe.look, self.context), name=name, daemon=True).start()
        return running


def doctor_of(
    settings: Settings, store: Store, *, room: Callable[[], list[RoomFault]], now: Callable[[], datetime]
) -> Doctor:
    client = None if settings.redis is None else quick_redis_from(settings)
    return Doctor(DoctorContext(settings=settings, store=store, redis=client, now=now, room=room))


def _fill(future: Future[ProbeAnswer], look: Callable[[DoctorContext], ProbeAnswer], context: DoctorContext) -> None:
    try:
        future.set_result(look(context))
    except BaseException as error:
        future.set_exception(error)


def _answer(probe: DoctorProbe, future: Future[ProbeAnswer], begun: float) -> ProbeAnswer | Symptom:
    """A symptom: it could not be made."""
    try:
        return future.result(timeout=max(0.0, begun + probe.seconds - time.monotonic()))
    except StillRunning:
        return _not_made(probe, f"it did not end within {probe.seconds:g} s")
    except UserError as fault:
        return _not_made(probe, str(fault))
    except Exception as fault:
        log.warning("a probe failed", probe=probe.name, exc_info=fault)
        return _not_made(probe, f"{type(fault).__name__}: {fault}")


def _not_made(probe: DoctorProbe, why: str) -> Symptom:
    is_service = probe.severity is Severity.ERROR
    text = f"{probe.name} cannot be reached: {why}." if is_service else f"{probe.name} could not be looked at: {why}."
    code = f"{probe.name}_away" if is_service else "probe_not_made"
    return Symptom(code=code, severity=probe.severity, where=probe.name, text=text, remedy=probe.remedy)
