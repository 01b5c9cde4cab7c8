"""Probes of rows: work that should be moving and is not, and what needs a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from chordage.orchestrator.core.doctor import ProbeAnswer, Symptom, error, warning
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.leases import LeaseRules
from chordage.orchestrator.core.text import counted
from chordage.orchestrator.gateways.redis_state import queue_lengths
from chordage.orchestrator.stages.keys import has_valid_key
from chordage.orchestrator.store import diagnosis
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.diagnosis import LateRows
from chordage.orchestrator.store.projection import TRACES
from chordage.workers.bootstrap import budgets_from
from chordage.workers.doctor.context import DoctorContext
from chordage.workers.fleet import roles

SWEEPS = 5  # after so many, something that a sweep moves is late
LEAST = 15.0  # seconds
BUS_BEHIND = 30.0
TRACES_BEHIND = 300.0  # several attempts of an export
LATELY = timedelta(hours=24)  # of poisoned runs
SOON = timedelta(days=7)  # of keys
WORKER = "chordage worker"


def _patience(context: DoctorContext) -> float:
    return max(LEAST, SWEEPS * context.settings.sweep)


# runs, calls, turns, questions

_Finder = Callable[[Tx, datetime], LateRows]
# Each with its code, its noun, and what is wrong with the rows. A sweep of any process of the fleet moves them.
_OF_SWEEPS: tuple[tuple[str, _Finder, str, str], ...] = (
    ("lease_expired", diagnosis.unrenewed_runs, "run", "a lease that ran out, and no sweep takes them over"),
    ("lease_expired", diagnosis.unrenewed_calls, "call", "a lease that ran out, and no sweep takes them over"),
    (
        "deadline_passed",
        diagnosis.turns_past_deadline,
        "queued turn",
        "a deadline that passed, and no sweep drops them",
    ),
    ("question_expired", diagnosis.unclosed_questions, "question", "a time that is over, and no sweep closes them"),
)


def look_at_work(context: DoctorContext) -> ProbeAnswer:
    before = context.ago(_patience(context))
    symptoms: list[Symptom] = []
    with context.store.read() as tx:
        for code, find, noun, fault in _OF_SWEEPS:
            if (late := find(tx, before)).ids:
                text = f"{late.number} {noun if len(late.ids) == 1 else noun + 's'} with {fault} (first {late.ids[0]})."
                symptoms.append(error(code, f"{noun}s", text, f"{WORKER} --queues system", late.since))
        symptoms += _of_starts(context, tx, before)
        symptoms += _of_poison(context, tx)
    symptoms += _of_settled(context)
    return ProbeAnswer(summary="all that should move does", symptoms=tuple(symptoms))


def _of_starts(context: DoctorContext, tx: Tx, before: datetime) -> Iterator[Symptom]:
    budgets = budgets_from(context.settings)
    for group in Group:
        late = diagnosis.startable_turns(tx, group, context.now(), budget=budgets[group], before=before)
        if late.ids:
            text = (
                f"{counted(len(late.ids), 'turn')} of group {group.value} could have started, and did not although its "
                f"budget is free (first {late.ids[0]})."
            )
            remedy = f"{WORKER} --queues {group.queue}"
            yield error("turn_not_started", f"group {group.value}", text, remedy, late.since)


def _of_poison(context: DoctorContext, tx: Tx) -> Iterator[Symptom]:
    poisoned = diagnosis.poisoned_runs(tx, context.now() - LATELY)
    if poisoned.ids:
        text = (
            f"{poisoned.number} {'run' if len(poisoned.ids) == 1 else 'runs'} failed in the last 24 hours as poison: a "
            f"step ended one worker after another (first {poisoned.ids[0]})."
        )
        yield warning("poison_run", "runs", text, f"chordage show {poisoned.ids[0]}", poisoned.since)


def _of_settled(context: DoctorContext) -> Iterator[Symptom]:
    """As rescue asks when a process is gone: a wake-up that is in no queue was taken, and a worker that took it has put
    that on record by now. Without Redis the queues are not known.
    """
    if context.redis is None:
        return
    settings, now = context.settings, context.now()
    lengths = queue_lengths(context.redis, [group.queue for group in Group], prefix=settings.broker_prefix)
    empty = [group for group in Group if not lengths[group.queue]]
    leases = LeaseRules(seconds=settings.lease, beat=settings.beat, sweep=settings.sweep)
    before = now - timedelta(seconds=_patience(context))
    with context.store.read() as tx:
        late = diagnosis.untaken_runs(
            tx, empty, settled_before=before, leased_before=leases.until(now) - timedelta(seconds=_patience(context))
        )
    if late.ids:
        text = (
            f"{late.number} {'run' if len(late.ids) == 1 else 'runs'} whose calls are all settled, or that have just "
            f"begun, were taken by no worker, and no message for them waits (first {late.ids[0]})."
        )
        yield error("run_not_taken", "runs", text, f"chordage why {late.ids[0]}")


# deliveries and the bus


def look_at_deliveries(context: DoctorContext) -> ProbeAnswer:
    symptoms: list[Symptom] = []
    with context.store.read() as tx:
        dead, late = (
            diagnosis.dead_deliveries(tx),
            diagnosis.unsent_deliveries(tx, context.ago(60 + _patience(context))),
        )
    if dead.ids:
        text = f"{dead.number} {'reply was' if len(dead.ids) == 1 else 'replies were'} given up (first {dead.ids[0]})."
        symptoms.append(warning("dead_delivery", "deliveries", text, "chordage deliveries --dead", dead.since))
    if late.ids:
        text = f"{late.number} {'reply is' if len(late.ids) == 1 else 'replies are'} due, and no worker sends them."
        symptoms.append(error("delivery_late", "deliveries", text, f"{WORKER} --queues delivery,system", late.since))
    return ProbeAnswer(summary="none is late or dead", symptoms=tuple(symptoms))


def look_at_bus(context: DoctorContext) -> ProbeAnswer:
    if context.redis is None:
        return ProbeAnswer(summary="there is none without Redis")
    with context.store.read() as tx:
        bus = diagnosis.delay_of(tx)
    behind = (context.now() - bus.oldest).total_seconds() if bus.oldest else 0.0
    if bus.error:
        text = f"the bus does not advance, after {counted(bus.failures, 'failure')}: {bus.error}."
        symptoms = (error("bus_stuck", "bus", text, "chordage bus status", bus.error_at),)
    elif behind > BUS_BEHIND:
        text = f"the bus is {behind:.0f} s behind the database, and no process writes it: replies wait for it."
        symptoms = (error("bus_behind", "bus", text, f"{WORKER} --queues system", bus.oldest),)
    else:
        return ProbeAnswer(summary=f"{max(0.0, behind):.0f} s behind")
    return ProbeAnswer(summary=f"{max(0.0, behind):.0f} s behind", symptoms=symptoms)


def look_at_traces(context: DoctorContext) -> ProbeAnswer:
    """No turn waits for it. One failure is no finding: a collector may be restarted."""
    endpoint = context.settings.otlp_endpoint
    if endpoint is None:
        return ProbeAnswer(summary="none are sent")
    with context.store.read() as tx:
        traces = diagnosis.delay_of(tx, TRACES)
    behind = (context.now() - traces.oldest).total_seconds() if traces.oldest else 0.0
    summary = f"{max(0.0, behind):.0f} s behind"
    if behind <= TRACES_BEHIND:
        return ProbeAnswer(summary=summary)
    if traces.error:
        text = (
            f"no spans have been sent for {behind:.0f} s, after {counted(traces.failures, 'failure')}: {traces.error}. "
            "They wait, and are lost for turns that are deleted before."
        )
        symptom = warning("traces_stuck", endpoint, text, f"curl -i {endpoint}", traces.error_at)
    else:
        text = f"spans of {behind:.0f} s wait, and no process sends them."
        symptom = warning("traces_behind", endpoint, text, f"{WORKER} --queues system", traces.oldest)
    return ProbeAnswer(summary=summary, symptoms=(symptom,))


# sources of turns


def look_at_sources(context: DoctorContext) -> ProbeAnswer:
    """Scheduled work and channels."""
    settings = context.settings
    symptoms: list[Symptom] = []
    with context.store.read() as tx:
        late = diagnosis.unstarted_work(tx, context.ago(max(LEAST, SWEEPS * settings.pulse)))
        failing = diagnosis.failing_channels(tx)
    if late.ids and "pulse" in settings.loops:
        text = (
            f"scheduled work was not looked at ({late.number}, first {late.ids[0]}): no beat runs, or no worker takes "
            "messages from the queue system."
        )
        symptoms.append(error("beat_not_seen", "beat", text, "chordage beat", late.since))
    for channel in failing:
        text = f"the channel {channel.name} failed {counted(channel.failures, 'time')} in a row."
        symptoms.append(
            warning("channel_failing", channel.name, text, f"chordage why channel:{channel.name}", channel.looked_at)
        )
    return ProbeAnswer(summary="no time was missed, and no channel fails", symptoms=tuple(symptoms))


# keys


def look_at_keys(context: DoctorContext) -> ProbeAnswer:
    now = context.now()
    with context.store.read() as tx:
        expiring = diagnosis.expiring_keys(tx, now, now + SOON)
    symptoms = [
        warning(
            "key_expires", key.id, f"the key {key.id} ({key.name}) expires at {key.expires_at:%Y-%m-%d %H:%M} UTC.",
            f"chordage keys create {key.name}",
        )
        for key in expiring
    ]  # fmt: skip
    if roles.wants_keys(context.settings) and not has_valid_key(context.store, now):
        text = "the HTTP server wants a key with every request, and there is no valid one."
        symptoms.append(error("no_key", "keys", text, "chordage keys create NAME --scope submit --scope read"))
    return ProbeAnswer(summary="none expires within 7 days", symptoms=tuple(symptoms))
