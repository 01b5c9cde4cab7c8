"""The heartbeat of a worker: one thread a process, from its start to its end.

In a pool of processes the parent beats for its children, which may be stopped, or kept from beating by a tool. A child
beats for itself only where its parent is late, because that stands still or is gone. What such a child holds may be
given to another in the meantime: then whoever notices first, it or its parent, ends the child before it does more.

It promises nothing about the moment in which a process goes on that had stood still together with its parent: what its
tool does before either has asked the database is done. In a pool of threads a call that is in another hand is told to
stop, as one that was cancelled is: the process has others in hand.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import structlog
from billiard.process import current_process

from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.gateways.pool_memory import SLOTS, PoolChild, PoolMemory, PoolParent
from chordage.orchestrator.runtime import Runtime
from chordage.workers.bootstrap import worker_name
from chordage.workers.slots import processes

log = structlog.get_logger()

TICK = 1.0  # how often work in hand is asked whether it was cancelled
FIRST_BEAT = 2.0  # work that lasts longer than this is put on record
LATE = 1.5  # beats after which a child takes its parent's to be missing


class Aside:
    """Does one thing at a time, in a thread of its own. What comes meanwhile is left out: the next beat brings it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def __call__(self, act: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=act, name="chordage-marks", daemon=True)
            self._thread.start()


class Beats:
    def __init__(self, settings: Settings, runtime: Callable[[], Runtime]) -> None:
        self._every = settings.beat
        self._runtime = runtime
        self._shared: PoolMemory | None = None
        self._aside = Aside()  # while Redis is paused each word to it takes seconds, and the beat must not wait
        self._pid = 0

    def share(self) -> None:
        """Before a pool of processes is made."""
        self._shared = PoolMemory()

    def start(self, pool: Any) -> None:
        """In the process of the worker itself. `pool`: of Celery."""
        if processes(pool) is None or self._shared is None:
            self._start(self._beat_alone)
            return
        children = PoolParent(self._shared)
        self._start(lambda: self._beat_for_all(children, {process.pid for process in processes(pool) or ()}))

    def start_in_a_child(self) -> None:
        place = getattr(current_process(), "index", SLOTS)
        if self._shared is None or place >= SLOTS:
            self._start(lambda: self._beat_as_a_child(None))
            return
        child = PoolChild(self._shared, place, os.getpid())
        self._runtime().in_flight.watched_by(child.changed)
        self._start(lambda: self._beat_as_a_child(child))

    def _start(self, beat: Callable[[], None]) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            threading.Thread(target=self._run, args=(beat,), name="chordage-heartbeat", daemon=True).start()

    def _run(self, beat: Callable[[], None]) -> None:
        while True:
            time.sleep(min(TICK, self._every / 2))
            try:
                beat()
            except ChordageError as error:
                log.warning("heartbeat missed", error=str(error))
            except Exception:
                log.exception("heartbeat failed")

    @property
    def _first(self) -> float:
        return min(FIRST_BEAT, self._every)

    def _beat_alone(self) -> None:
        stages.beat(self._runtime(), first=self._first, every=self._every, aside=self._aside)

    def _beat_for_all(self, children: PoolParent, alive: Collection[int]) -> None:
        theirs = children.works(alive, worker_name)
        given_away = stages.beat(
            self._runtime(), first=self._first, every=self._every, of_children=theirs, aside=self._aside
        )
        children.write_beats()
        for hand in given_away:
            if hand.token and (pid := children.holder(hand)) in alive:
                _end(hand, pid)

    def _beat_as_a_child(self, child: PoolChild | None) -> None:
        """The connections of a child are free enough: it does one thing at a time."""
        rt = self._runtime()
        first, every = self._first, self._every
        if child is not None:
            child.read_beats(rt.in_flight.all())
            first, every = LATE * self._every, LATE * self._every
        for hand in stages.beat(rt, first=first, every=every, through=rt.store, aside=self._aside):
            if hand.token:
                _end(hand, os.getpid())


def _end(hand: InFlightWork, pid: int | None) -> None:
    assert pid is not None
    log.warning("call is in another hand; its process ends before it does more", call=hand.call_id, pid=pid)
    os.kill(pid, signal.SIGKILL)
