"""The result backend of our processes: it counts the headers of a chord that have returned (ADR 32), and stores the
result of a task of ours in one trip.

A header may return twice, late, or never, and the process may die behind any line. That is safe: the body decides by
the rows and may run more than once, and where it is not sent, rescue sends it. A header that is executed again after
the last has returned sends the body again, for the case that the one before was killed before it could.

Celery subscribes to the result of every task that it sends, and never unsubscribes: a worker that fans out rounds all
day would collect a channel for each call. So nothing is subscribed to here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import structlog
from celery import Celery
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.states import SUCCESS
from redis.exceptions import RedisError

from chordage.config.redis_url import RedisAddress, RedisKind
from chordage.orchestrator.gateways.redis_direct import Command, RedisTrips
from chordage.tasks.courier import ROUND_SIZE, SEND_ERRORS, Courier
from chordage.tasks.tasks import StageTask

log = structlog.get_logger()

KEPT = 86_400  # seconds in which the last header has to return; after them rescue commits the round
AFTERWARDS = 300  # seconds for which a joined chord is remembered, for headers that run again
# KEYS: the headers that have returned. ARGV: this header, their number, seconds to keep them before and after the join.
NOTE_RETURN = """
redis.call('SADD', KEYS[1], ARGV[1])
local all = redis.call('SCARD', KEYS[1]) >= tonumber(ARGV[2])
redis.call('EXPIRE', KEYS[1], all and ARGV[4] or ARGV[3])
return all
"""


class JoiningBackend(RedisBackend):
    app: Celery  # the stubs lack these
    expires: int | None
    _get_result_meta: Callable[..., dict[str, Any]]

    @cached_property
    def _trips(self) -> RedisTrips:
        return RedisTrips(self.client)

    @cached_property
    def _courier(self) -> Courier:
        return Courier(self.app)

    def on_chord_part_return(self, request: Any, state: Any, result: Any, propagate: Any = None, **kwargs: Any) -> None:
        """A header has ended, well or not."""
        body = request.chord
        if ROUND_SIZE not in body:
            super().on_chord_part_return(request, state, result, propagate=propagate, **kwargs)
            return
        try:
            if self.note_return(request):
                self._courier.send_round_body(body)
        except SEND_ERRORS as error:
            log.warning("chord not joined; rescue will commit its round", chord=request.group, error=str(error))

    def note_return(self, request: Any) -> bool:
        """Whether all headers of this one's chord have returned now."""
        size = request.chord[ROUND_SIZE]
        if size == 1:
            return True
        key = self.get_key_for_group(request.group, ".returned")
        (all_have,) = self._trips.ask(("EVAL", NOTE_RETURN, 1, key, request.group_index, size, KEPT, AFTERWARDS))
        return bool(all_have)

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Celery reads first whether there is a success, because a failure must not replace it. A success of ours may
        replace a success: a message that is delivered again finds what is there, and returns the same.
        """
        if state != SUCCESS or request is None or not isinstance(self.app.tasks.get(request.task), StageTask):
            return super()._store_result(  # type: ignore[misc]  # the stubs lack it
                task_id, result, state, traceback=traceback, request=request, **kwargs
            )
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        key, value = self.get_key_for_task(task_id), self.encode({**meta, "task_id": task_id})
        try:
            self._trips.ask(*_stored(key, value, self.expires))
        except (RedisError, OSError) as error:
            log.info("a result is stored in the way of Celery, which tries again", error=str(error))
            self.set(key, value)
        return result

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Sending a task subscribes to nothing."""

    def add_pending_result(self, result: Any, weak: bool = False, start_drainer: bool = True) -> Any:  # noqa: ARG002
        """Nor does sending a chord, which would subscribe to each of its headers."""
        return result


def _stored(key: str, value: str | bytes, seconds: int | None) -> tuple[Command, Command]:
    """Without a transaction: the result is set before its clients are notified of it."""
    expires = ("EX", seconds) if seconds else ()
    return ("SET", key, value, *expires), ("PUBLISH", key, value)


class JoiningSentinelBackend(JoiningBackend, SentinelBackend):
    """The same, on the server that sentinels name."""


def url_of(address: RedisAddress) -> str:
    """The setting `result_backend` of our processes."""
    kind = JoiningSentinelBackend if address.kind is RedisKind.SENTINEL else JoiningBackend
    return f"{__name__}:{kind.__name__}+{address.bare_url}"
