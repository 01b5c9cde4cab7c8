"""The poll loop: fetch the messages of each channel and make them turns.

`Poller` has a thread for each binding of channels.toml, which calls `poll_once` and waits as long as that says. A
binding that fails or hangs stops no other. The loop ends within the second: a thread that waits for a channel is
abandoned, and the next process fetches the same messages, because nothing of them was stored.

`poll_once` asks the channel while no transaction is open. Then the turns of its messages, the refusals of those that
can be none, and the new cursor are one commit (ADR 28). A process that dies before it has changed nothing, and the
channel returns the same messages again. A process whose cursor is out of date stores nothing. Several processes may ask
a channel at once: the lease only makes that rare.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

import structlog

from chordage.orchestrator.core import channels, text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.channels import Incoming, Polled, Terms, Unreadable
from chordage.orchestrator.core.errors import InvalidMessage, LostRace, QueueFull, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.message import Sender, TurnRequest
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import polls
from chordage.orchestrator.store.polls import PollCounts, PollPosition

log = structlog.get_logger()

PAUSE_MIN = 0.05  # seconds between two polls, whatever a channel says
LONGEST_POLL = 600.0  # seconds after which the lease of a binding that hangs is no longer renewed
GRACE = 1.0
ERROR_LENGTH = 1000

Send = Callable[[list[Intent]], None]


class PollOutcome(StrEnum):
    ELSEWHERE = "elsewhere"  # another process polls it
    RESTING = "resting"  # it failed, or there was no room, and its pause is not over
    NOTHING = "nothing"
    CAME = "came"
    FULL = "full"  # there is no room for the messages
    OVERTAKEN = "overtaken"  # another process has stored meanwhile
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PollResult:
    outcome: PollOutcome
    wait: float  # seconds until the next poll


class Poller:
    """`poll` polls one binding and returns the seconds until the next time; it raises if it cannot note a failure."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        poll: Callable[[str], float],
        renew: Callable[[Collection[str]], None],
        release: Callable[[Collection[str]], None],
        beat: float,
    ) -> None:
        self._names = names
        self._poll = poll
        self._renew = renew
        self._release = release
        self._beat = beat
        self._began: dict[str, float] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll_binding, args=(name,), name=f"poll {name}", daemon=True)
            for name in names
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._keep_leases, name="poll leases", daemon=True).start()

    def stop(self, interrupt: Callable[[], None]) -> None:
        """`interrupt` breaks off waits for a channel. A batch that is being stored is stored."""
        self._stopping.set()
        until = time.monotonic() + GRACE
        for thread in self._threads:
            thread.join(0.05)
        interrupt()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._for_leases(self._release)

    def _poll_binding(self, name: str) -> None:
        failures = itertools.count(1)
        while not self._stopping.is_set():
            self._began[name] = time.monotonic()
            try:
                wait = self._poll(name)
                failures = itertools.count(1)
            except Exception as error:
                wait = channels.BACKOFF.delay(next(failures), 0.5)
                self._log_failure(name, error, wait)
            self._stopping.wait(max(wait, PAUSE_MIN))

    def _log_failure(self, name: str, error: Exception, wait: float) -> None:
        if self._stopping.is_set():
            return
        bug = None if isinstance(error, UserError) else error
        log.warning("channel not polled", channel=name, error=str(error), rest=round(wait, 1), exc_info=bug)

    def _keep_leases(self) -> None:
        """Also between two polls, as long as polls end."""
        while not self._stopping.wait(self._beat):
            self._for_leases(self._renew)

    def _for_leases(self, act: Callable[[Collection[str]], None]) -> None:
        """A lease that was not renewed costs a second poll at most, and one that was not released some seconds."""
        now = time.monotonic()
        alive = [name for name in self._names if now - self._began.get(name, now) < LONGEST_POLL]
        try:
            act(alive)
        except Exception as error:
            log.warning("leases of channels not kept", error=str(error))


def poll_once(rt: Runtime, name: str, send: Send) -> PollResult:
    """Raises only where the database does not answer."""
    now = rt.now()
    with Unit(rt) as unit:
        standing = polls.claim(unit.tx, name, rt.worker, now, now + timedelta(seconds=rt.leases.seconds))
    if standing is None:
        return PollResult(outcome=PollOutcome.ELSEWHERE, wait=rt.leases.seconds / 3)
    if standing.next_look is not None and (rest := (standing.next_look - rt.now()).total_seconds()) > 0:
        return PollResult(outcome=PollOutcome.RESTING, wait=rest)
    try:
        terms = rt.channels.terms(name)
        agent = rt.agents.get(terms.agent)
        polled = rt.channels.get(name).poll(standing.cursor)
        channels.check_cursors(polled)
    except Exception as error:
        return _note_failure(rt, standing, error)
    try:
        return _store(rt, standing, terms, agent, polled, send)
    except Unavailable:
        raise
    except Exception as error:  # a bug of ours: nothing is lost, and the operator sees it
        return _note_failure(rt, standing, error)


def renew_leases(rt: Runtime, names: Collection[str]) -> None:
    with Unit(rt, rt.store.single) as unit:
        polls.renew(unit.tx, names, rt.worker, unit.now + timedelta(seconds=rt.leases.seconds))


def release_leases(rt: Runtime, names: Collection[str]) -> None:
    """Another process may poll at once."""
    with Unit(rt, rt.store.single) as unit:
        polls.release(unit.tx, names, rt.worker)


def _store(
    rt: Runtime, standing: PollPosition, terms: Terms, agent: AgentSpec, polled: Polled, send: Send
) -> PollResult:
    """Batch by batch, each with the cursor behind it."""
    current, moved = standing, False
    for batch in channels.batches(polled):
        if not (batch.messages or batch.passed_over) and batch.cursor == current.cursor:
            break
        stored = store_batch(rt, current, terms, agent, batch)
        if stored is None:
            return PollResult(outcome=PollOutcome.OVERTAKEN, wait=terms.every)
        send(stored.intents)
        moved |= stored.moved
        if stored.full is not None:
            return _note_full(rt, standing, stored.full)
        if stored.moved:
            current = replace(current, cursor=stored.cursor, revision=current.revision + 1)
    if standing.failures or standing.next_look is not None:
        with Unit(rt, rt.store.single) as unit:
            polls.note_success(unit.tx, standing.name, rt.worker)
    outcome = PollOutcome.CAME if moved else PollOutcome.NOTHING
    return PollResult(outcome=outcome, wait=0.0 if moved else terms.every)


def _note_full(rt: Runtime, standing: PollPosition, full: QueueFull) -> PollResult:
    with Unit(rt, rt.store.single) as unit:
        until = unit.now + timedelta(seconds=full.retry_after)
        polls.note_full(unit.tx, standing.name, rt.worker, str(full), until)
    return PollResult(outcome=PollOutcome.FULL, wait=full.retry_after)


def _note_failure(rt: Runtime, standing: PollPosition, error: Exception) -> PollResult:
    rest = channels.BACKOFF.delay(standing.failures + 1, random.random())
    why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    with Unit(rt, rt.store.single) as unit:
        until = unit.now + timedelta(seconds=rest)
        polls.note_failure(unit.tx, standing.name, rt.worker, why[:ERROR_LENGTH], until)
    log.warning("channel failed", channel=standing.name, error=why, failures=standing.failures + 1, rest=round(rest, 1))
    return PollResult(outcome=PollOutcome.FAILED, wait=rest)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBatch:
    counts: PollCounts
    cursor: str | None
    moved: bool  # something has changed
    full: QueueFull | None = None  # there was no room for the messages behind these
    intents: list[Intent] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """The turn that a message asks for, or why it cannot be one."""

    message: Incoming | Unreadable
    request: TurnRequest | None = None
    why: str = ""


def store_batch(
    rt: Runtime, standing: PollPosition, terms: Terms, agent: AgentSpec, batch: Polled
) -> StoredBatch | None:
    """In one transaction, which moves the cursor too. None: another process has stored since the cursor was read."""
    messages = [_check(rt, standing.name, terms, message) for message in batch.messages]
    with Unit(rt) as unit:
        if not polls.lock_revision(unit.tx, standing.name, standing.revision):
            return None
        stored = _BatchWriter(unit, agent, standing).write(batch, messages)
        if stored.moved:
            polls.store_cursor(unit.tx, standing.name, standing.revision, stored.cursor, stored.counts, unit.now)
    return replace(stored, intents=unit.intents)


def _check(rt: Runtime, name: str, terms: Terms, message: Incoming | Unreadable) -> _Checked:
    if isinstance(message, Unreadable):
        return _Checked(message=message, why=message.why)
    try:
        request = channels.request_of(name, terms, replace(message, sender=Sender(message.sender)))
        arrivals.check_request(rt, request, rt.now())
    except (InvalidMessage, ValueError, TypeError, AttributeError) as error:  # the last three: a plugin's own types
        return _Checked(message=message, why=str(error))
    return _Checked(message=message, request=request)


class _BatchWriter:
    """Within one transaction."""

    def __init__(self, unit: Unit, agent: AgentSpec, standing: PollPosition) -> None:
        self._unit = unit
        self._agent = agent
        self._standing = standing
        self._source = channels.source_of(standing.name)
        self._taken = self._doubled = self._refused = 0
        self._known_keys: set[str | None] = set()

    def write(self, batch: Polled, messages: Sequence[_Checked]) -> StoredBatch:
        self._prepare([message.request for message in messages if message.request is not None])
        for place, message in enumerate(messages):
            try:
                self._take(message)
            except QueueFull as full:
                return self._result(channels.cursor_before(batch, place, self._standing.cursor), full=full)
        return self._result(batch.cursor, passed_over=batch.passed_over)

    def _prepare(self, requests: Sequence[TurnRequest]) -> None:
        """Find duplicates first: a broken constraint would end the transaction. Then take the locks, in their order."""
        keys = {request.dedupe_key for request in requests if request.dedupe_key is not None}
        if keys:
            self._known_keys |= polls.known_keys(self._unit.tx, self._agent.name, self._source, keys)
        new = [request.message.thread_id for request in requests if request.dedupe_key not in self._known_keys]
        if new:
            arrivals.lock_bounded_group(self._unit, Group.CHAT)  # before any thread
            polls.lock_threads(self._unit.tx, {thread_id for thread_id in new if thread_id is not None})

    def _take(self, candidate: _Checked) -> None:
        request = candidate.request
        if request is None:
            self._refuse(candidate.message, candidate.why)
        elif request.dedupe_key in self._known_keys:
            self._doubled += 1
        else:
            self._admit(candidate.message, request)
            self._known_keys.add(request.dedupe_key)

    def _admit(self, message: Incoming | Unreadable, request: TurnRequest) -> None:
        """A refusal undoes this message alone. Raises QueueFull."""
        try:
            with self._unit.savepoint():
                arrivals.admit(self._unit, self._agent, request, [])
        except LostRace:
            self._doubled += 1
        except (QueueFull, Unavailable):
            raise
        except UserError as error:
            self._refuse(message, str(error))
        else:
            self._taken += 1

    def _refuse(self, message: Incoming | Unreadable, why: str) -> None:
        key, excerpt = channels.refusal_key(message), channels.excerpt_of(message)
        unit = self._unit
        if polls.refuse(unit.tx, self._source, key, why=text.clean_text(why), excerpt=excerpt, now=unit.now):
            self._refused += 1
            log.warning("a message was refused", channel=self._standing.name, key=key, why=why)

    def _result(self, cursor: str | None, *, passed_over: int = 0, full: QueueFull | None = None) -> StoredBatch:
        counts = PollCounts(taken=self._taken, doubled=self._doubled, refused=self._refused, passed_over=passed_over)
        moved = bool(self._taken or self._refused) or cursor != self._standing.cursor
        return StoredBatch(counts=counts, cursor=cursor, moved=moved, full=full)
