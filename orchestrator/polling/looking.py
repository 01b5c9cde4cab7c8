"""One look at a polled channel: what has come in becomes turns, in the transaction that moves the cursor behind it.

The channel is asked while no transaction is open. Then the turns of its messages, the refusals of those that can be
none, and the new cursor are one commit. A process that dies before it has changed nothing, and the channel hands the
same out again; one that dies behind it has stored all of it, and rescue finds the turns. Whoever read the cursor before
somebody else moved it stores nothing. What a channel hands out again has the same key, and is no second turn.

It does not promise that a channel is asked once: a lease sees to it that mostly one process asks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

import structlog

from chordage.orchestrator.core import channels as core
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.channels import Polled, Terms
from chordage.orchestrator.core.errors import QueueFull, Unavailable, UserError
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.polling.storing import store_batch
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import polls
from chordage.orchestrator.store.polls import PollCounts, PollPosition

log = structlog.get_logger()

ERROR_LENGTH = 1000
Send = Callable[[list[Intent]], None]


class Outcome(StrEnum):
    ELSEWHERE = "elsewhere"  # another process looks at it
    RESTING = "resting"  # it failed, or there was no room, and its rest is not over
    NOTHING = "nothing"
    CAME = "came"
    FULL = "full"  # there is no room for what came
    OVERTAKEN = "overtaken"  # another has stored meanwhile
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    outcome: Outcome
    wait: float  # seconds until the next look
    counts: PollCounts = field(default_factory=PollCounts)


def look(rt: Runtime, name: str, send: Send) -> Looked:
    """Raises only where the database does not answer."""
    standing = _take(rt, name)
    if standing is None:
        return Looked(outcome=Outcome.ELSEWHERE, wait=rt.leases.seconds / 3)
    if standing.next_look is not None and (rest := (standing.next_look - rt.now()).total_seconds()) > 0:
        return Looked(outcome=Outcome.RESTING, wait=rest)
    try:
        terms, agent = _terms(rt, name)
        polled = rt.channels.get(name).poll(standing.cursor)
        core.check_cursors(polled)
    except Exception as error:
        return _failed(rt, standing, error)
    try:
        return _store(rt, standing, terms, agent, polled, send)
    except Unavailable:
        raise
    except Exception as error:  # a bug of ours: nothing is lost, and it is shown
        return _failed(rt, standing, error)


def renew(rt: Runtime, names: Collection[str]) -> None:
    with rt.store.single() as tx:
        polls.renew(tx, names, rt.worker, rt.now() + timedelta(seconds=rt.leases.seconds))


def let_go(rt: Runtime, names: Collection[str]) -> None:
    """Another may look at once."""
    with rt.store.single() as tx:
        polls.release(tx, names, rt.worker)


def _take(rt: Runtime, name: str) -> PollPosition | None:
    now = rt.now()
    with rt.store.write() as tx:
        return polls.claim(tx, name, rt.worker, now, now + timedelta(seconds=rt.leases.seconds))


def _terms(rt: Runtime, name: str) -> tuple[Terms, AgentSpec]:
    terms = rt.channels.terms(name)
    return terms, rt.agents.get(terms.agent)


def _store(rt: Runtime, standing: PollPosition, terms: Terms, agent: AgentSpec, polled: Polled, send: Send) -> Looked:
    """Batch by batch, each with the cursor behind it."""
    seen, counts, moved = standing, PollCounts(), False
    for batch in core.batches(polled):
        if not (batch.messages or batch.passed_over) and batch.cursor == seen.cursor:
            break
        stored = store_batch(rt, seen, terms, agent, batch)
        if stored is None:
            return Looked(outcome=Outcome.OVERTAKEN, wait=terms.every, counts=counts)
        send([intent for each in stored.stored for intent in each.intents])
        counts = _sum(counts, stored.counts)
        moved |= stored.moved
        if stored.full is not None:
            return _full(rt, standing, stored.full, counts)
        if stored.moved:
            seen = replace(seen, cursor=stored.cursor, revision=seen.revision + 1)
    if standing.failures or standing.next_look is not None:
        with rt.store.single() as tx:
            polls.note_success(tx, standing.name, rt.worker)
    return Looked(outcome=Outcome.CAME if moved else Outcome.NOTHING, wait=0.0 if moved else terms.every, counts=counts)


def _full(rt: Runtime, standing: PollPosition, full: QueueFull, counts: PollCounts) -> Looked:
    with rt.store.single() as tx:
        until = rt.now() + timedelta(seconds=full.retry_after)
        polls.note_full(tx, standing.name, rt.worker, str(full), until)
    return Looked(outcome=Outcome.FULL, wait=full.retry_after, counts=counts)


def _failed(rt: Runtime, standing: PollPosition, error: Exception) -> Looked:
    """What is no error for people is a bug of a plugin; guarding.py has made words of it."""
    rest = core.BACKOFF.delay(standing.failures + 1, random.random())
    told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    with rt.store.single() as tx:
        until = rt.now() + timedelta(seconds=rest)
        polls.note_failure(tx, standing.name, rt.worker, told[:ERROR_LENGTH], until)
    log.warning(
        "channel failed", channel=standing.name, error=told, failures=standing.failures + 1, rest=round(rest, 1)
    )
    return Looked(outcome=Outcome.FAILED, wait=rest)


def _sum(one: PollCounts, other: PollCounts) -> PollCounts:
    return PollCounts(
        taken=one.taken + other.taken,
        doubled=one.doubled + other.doubled,
        refused=one.refused + other.refused,
        passed_over=one.passed_over + other.passed_over,
    )
