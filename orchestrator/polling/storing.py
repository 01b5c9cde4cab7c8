"""The messages of one look, or some of them, made turns: all in the transaction that moves the cursor behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from chordage.orchestrator.core import channels as core
from chordage.orchestrator.core import text
from chordage.orchestrator.core.agent import AgentSpec
from chordage.orchestrator.core.channels import Batch, Incoming, Terms, Unreadable
from chordage.orchestrator.core.errors import InvalidMessage, LostRace, QueueFull, Unavailable, UserError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Sender, TurnRequest
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.run.arrivals import Stored, check_request, store_in, tell
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import polls
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.store.polls import PollCounts, PollPosition

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBatch:
    stored: list[Stored]
    counts: PollCounts
    cursor: str | None
    moved: bool  # something has changed
    full: QueueFull | None = None  # there was no room for those behind them


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """What is asked for, or why it cannot be."""

    came: Incoming | Unreadable
    request: TurnRequest | None = None
    why: str = ""


def store_batch(rt: Runtime, seen: PollPosition, terms: Terms, agent: AgentSpec, batch: Batch) -> StoredBatch | None:
    """None: somebody has stored since the cursor was read."""
    ready = [_ready(rt, seen.name, terms, came) for came in batch.messages]
    with rt.store.write() as tx:
        if not polls.lock_revision(tx, seen.name, seen.revision):
            return None
        found = _Storing(tx, rt, agent, seen).all_of(batch, ready)
        if found.moved:
            polls.store_cursor(tx, seen.name, seen.revision, found.cursor, found.counts, rt.now())
    for stored in found.stored:
        tell(rt, stored)
    return found


def _ready(rt: Runtime, name: str, terms: Terms, came: Incoming | Unreadable) -> _Ready:
    if isinstance(came, Unreadable):
        return _Ready(came=came, why=came.why)
    try:
        request = core.request_of(name, terms, replace(came, sender=Sender(came.sender)))
        check_request(rt, request, rt.now())
    except (
        InvalidMessage,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:  # the latter of what plugins make up
        return _Ready(came=came, why=str(error))
    return _Ready(came=came, request=request)


class _Storing:
    """Within one transaction."""

    def __init__(self, tx: Tx, rt: Runtime, agent: AgentSpec, seen: PollPosition) -> None:
        self._tx = tx
        self._rt = rt
        self._agent = agent
        self._seen = seen
        self._stored: list[Stored] = []
        self._doubled = self._refused = 0
        self._known: set[str | None] = set()

    def all_of(self, batch: Batch, ready: Sequence[_Ready]) -> StoredBatch:
        self._prepare([each.request for each in ready if each.request is not None])
        for place, each in enumerate(ready):
            try:
                self._take(each)
            except QueueFull as full:
                return self._so_far(core.cursor_before(batch, place, self._seen.cursor), full=full)
        return self._so_far(batch.cursor, passed_over=batch.passed_over)

    def _prepare(self, requests: Sequence[TurnRequest]) -> None:
        """What is a turn already is found before: a constraint that is broken would end the transaction."""
        keys = {request.dedupe_key for request in requests if request.dedupe_key is not None}
        if keys:
            self._known |= polls.known_keys(self._tx, self._agent.name, core.source_of(self._seen.name), keys)
        new = [request.message.thread_id for request in requests if request.dedupe_key not in self._known]
        if new:
            arrivals.lock_bounded_group(self._tx, self._rt, Group.CHAT)  # before any thread
            polls.lock_threads(self._tx, {thread_id for thread_id in new if thread_id is not None})

    def _take(self, each: _Ready) -> None:
        if each.request is None:
            self._refuse(each.came, each.why)
        elif each.request.dedupe_key in self._known:
            self._doubled += 1
        else:
            self._admit(each.came, each.request)
            self._known.add(each.request.dedupe_key)

    def _admit(self, came: Incoming | Unreadable, request: TurnRequest) -> None:
        """What a message that is refused has begun is undone with it alone. Raises QueueFull."""
        try:
            with self._tx.begin_nested():
                stored = store_in(self._tx, self._rt, self._agent, request, [], self._rt.now())
        except LostRace:
            self._doubled += 1
        except (QueueFull, Unavailable):
            raise
        except UserError as error:
            self._refuse(came, str(error))
        else:
            self._stored.append(stored)

    def _refuse(self, came: Incoming | Unreadable, why: str) -> None:
        source, key, now = core.source_of(self._seen.name), core.refusal_key(came), self._rt.now()
        if polls.refuse(self._tx, source, key, why=text.clean_text(why), excerpt=core.excerpt_of(came), now=now):
            self._refused += 1
            log.warning("a message was refused", channel=self._seen.name, key=key, why=why)

    def _so_far(self, cursor: str | None, *, passed_over: int = 0, full: QueueFull | None = None) -> StoredBatch:
        counts = PollCounts(
            taken=len(self._stored), doubled=self._doubled, refused=self._refused, passed_over=passed_over
        )
        moved = bool(self._stored or self._refused) or cursor != self._seen.cursor
        return StoredBatch(stored=self._stored, counts=counts, cursor=cursor, moved=moved, full=full)
