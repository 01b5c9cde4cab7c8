"""What the door for web hooks is made of: the room's bindings, the way in, and the counts."""

from __future__ import annotations

from collections.abc import Callable

from redis.backoff import NoBackoff
from redis.retry import Retry

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator.core.message import TurnRequest
from chordage.orchestrator.gateways.hooks.book import HookBook
from chordage.orchestrator.gateways.hooks.tally import HookCounts, Tally
from chordage.orchestrator.loops.hooks import Admission, Hooks
from chordage.workers.bootstrap import redis_from

MIRROR = "hooks"  # the folder of the room


def hooks_of(settings: Settings, accept: Callable[[TurnRequest], Admission]) -> Hooks:
    room = settings.room_path
    book = HookBook(room, config.environment())
    return Hooks(book=book, accept=accept, tally=Tally(counts_of(settings), room / MIRROR))


def counts_of(settings: Settings) -> HookCounts:
    """Over a client that gives up at once: nobody waits for what is counted."""
    once = Retry(NoBackoff(), 0)
    redis = redis_from(settings, socket_timeout=1, socket_connect_timeout=1, health_check_interval=0, retry=once)
    return HookCounts(redis, prefix=settings.prefix)
