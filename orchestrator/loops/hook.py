"""The hook loop: a signed delivery of another service becomes a turn.

The signature is checked before anything else of the delivery. What it carries is then a message like any other: it is
stored, and workers carry it out. Deliveries that arrive at the same moment share a commit (`CommitBatcher`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import anyio
import structlog

from chordage.orchestrator.core import signatures, webhooks
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, QueueFull, Unavailable, UserError
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.core.signatures import SignatureCheck
from chordage.orchestrator.core.webhooks import DeliveryOutcome, WebhookBinding
from chordage.orchestrator.gateways.webhooks import decoders
from chordage.orchestrator.gateways.webhooks.bindings import WebhookBindings

log = structlog.get_logger()

THREADS = 32  # the API has its own
COMMIT_MAX = 64  # deliveries of one commit

Ask = TypeVar("Ask")
Result = TypeVar("Result")


class Admission(Protocol):
    """What is known of a message that was accepted."""

    @property
    def turn_id(self) -> str: ...
    @property
    def thread_id(self) -> str: ...
    @property
    def duplicate(self) -> bool: ...


class Stats(Protocol):
    def count(self, name: str, outcome: DeliveryOutcome, last: dict[str, Any] | None = None) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookReceiver:
    bindings: WebhookBindings
    accept: Callable[[TurnRequest], Admission]
    stats: Stats
    clock: Callable[[], float] = time.time
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(THREADS))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryResult:
    outcome: DeliveryOutcome
    admitted: Admission | None = None
    error: Exception | None = None  # for the sender: what to change


def receive(
    receiver: WebhookReceiver, binding: WebhookBinding, headers: Mapping[str, str], body: bytes
) -> DeliveryResult:
    """Store one delivery, unless it is refused, and count it."""
    last = None
    match signatures.verify(binding.seal, headers, body, receiver.clock()):
        case SignatureCheck.RIGHT:
            try:
                key = webhooks.delivery_key(binding.seal, headers, body)
                result = _store(receiver, binding, headers, body, key)
            except Exception as error:
                result = _refused(binding, error)
            if result.outcome is DeliveryOutcome.ACCEPTED and result.admitted is not None:
                at = datetime.fromtimestamp(receiver.clock(), UTC).isoformat(timespec="seconds")
                last = {"at": at, "turn": result.admitted.turn_id, "delivery": key}
        case verdict:
            result = DeliveryResult(outcome=DeliveryOutcome(verdict.value))
    receiver.stats.count(binding.name, result.outcome, last)
    return result


def _store(
    receiver: WebhookReceiver, binding: WebhookBinding, headers: Mapping[str, str], body: bytes, key: str | None
) -> DeliveryResult:
    once = webhooks.once_of(binding.seal, headers, body)
    message = decoders.decode(binding, headers, body)
    if message is None:
        return DeliveryResult(outcome=DeliveryOutcome.IGNORED)
    admitted = receiver.accept(webhooks.request_of(binding, message, key, once))
    return DeliveryResult(
        outcome=DeliveryOutcome.REPLAYED if admitted.duplicate else DeliveryOutcome.ACCEPTED, admitted=admitted
    )


def _refused(binding: WebhookBinding, error: Exception) -> DeliveryResult:
    match error:
        case InvalidMessage():
            return DeliveryResult(
                outcome=DeliveryOutcome.TOO_LARGE if error.too_large else DeliveryOutcome.MALFORMED, error=error
            )
        case QueueFull():
            return DeliveryResult(outcome=DeliveryOutcome.FULL, error=error)
        case Conflict():
            return DeliveryResult(outcome=DeliveryOutcome.BUSY, error=error)
        case Unavailable():
            log.error("a delivery was not taken: a service does not answer", hook=binding.name, error=str(error))
            return DeliveryResult(outcome=DeliveryOutcome.UNAVAILABLE)
        case _:  # an agent or a decoder of the room is broken; once it is repaired, the sender can try again
            why = str(error) if isinstance(error, UserError) else repr(error)
            log.error("a delivery was not taken: the room is broken", hook=binding.name, error=why)
            return DeliveryResult(outcome=DeliveryOutcome.FAILED)


class _Entry(Generic[Ask, Result]):
    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.results: list[Result | Exception] = []


class CommitBatcher(Generic[Ask, Result]):
    """Does the work of threads that call at the same moment in one go.

    Callers queue for a lock. The one that gets it does the work of all who are queued by then; meanwhile the next batch
    queues. No caller waits for a batch to fill: alone, a call is as fast as without a batcher. `work` returns a result
    or an exception for each ask. `afterwards` gets the same list, when the next batch may be under way already.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Ask]], Sequence[Result | Exception]],
        afterwards: Callable[[Sequence[Result | Exception]], None],
        *,
        batch_max: int = COMMIT_MAX,
    ) -> None:
        self._work = work
        self._afterwards = afterwards
        self._batch_max = batch_max
        self._queue: list[_Entry[Ask, Result]] = []
        self._queue_lock = threading.Lock()
        self._work_lock = threading.Lock()

    def __call__(self, ask: Ask) -> Result:
        entry: _Entry[Ask, Result] = _Entry(ask)
        with self._queue_lock:
            self._queue.append(entry)
        while not entry.results:
            with self._work_lock:
                results = [] if entry.results else self._do_batch()
            if results:
                self._afterwards(results)
        result = entry.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def _do_batch(self) -> Sequence[Result | Exception]:
        with self._queue_lock:
            batch, self._queue = self._queue[: self._batch_max], self._queue[self._batch_max :]
        try:
            results = self._work([entry.ask for entry in batch])
        except Exception as error:  # every caller gets a result, whatever goes wrong
            results = [error] * len(batch)
        for entry, result in zip(batch, results, strict=True):
            entry.results.append(result)
        return results
