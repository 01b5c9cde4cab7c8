"""What every worker does on a timer: its heartbeat, rescue, and the copy of the journal to the bus. None needs a beat.

In a pool of processes the parent sends the heartbeat for its children, because a child may be stopped, or kept busy by
a tool. A child sends its own only when its parent is late, because the parent is stopped or gone. Work of such a child
may have been claimed by another worker meanwhile: then the child, or its parent, ends the child before it does more.

Not promised: when a process resumes that was stopped together with its parent, its tool may act before either of them
has queried the database. In a pool of threads a call that another worker has claimed is stopped like a cancelled one,
because the process has other work in flight.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import structlog
from billiard.process import current_process
from celery import Celery
from redis import Redis
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import ChordageError, Unavailable
from chordage.orchestrator.core.intents import Intent, Project
from chordage.orchestrator.core.presence import Process
from chordage.orchestrator.gateways.in_flight import InFlightWork
from chordage.orchestrator.gateways.pool_memory import SLOTS, PoolChild, PoolMemory, PoolParent
from chordage.orchestrator.gateways.presence_watch import PresenceWatch
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store.database import Store
from chordage.tasks.courier import Courier
from chordage.workers import transport
from chordage.workers.bootstrap import redis_from
from chordage.workers.pool import processes
from chordage.workers.presence import is_alive, machine, process_of, worker_name

log = structlog.get_logger()

TICK = 1.0  # seconds between two checks whether work in flight was cancelled
FIRST_BEAT = 2.0  # seconds after which work in flight is recorded
SHARE_EVERY = 2.0  # seconds between two looks at how long the tools of others take
LATE = 1.5  # beats after which a child takes its parent's heartbeat to be missing
PARENT_LATE = 2.0  # intervals after which a child takes its parent not to show its presence
END_WITHIN = 1.0  # seconds that the last statement of a worker may take
MOST_PASSES = 100  # in one slot of the projector; then another worker may take it


class Heartbeat:
    """One thread a process, from its start to its end."""

    def __init__(
        self,
        settings: Settings,
        runtime: Callable[[], Runtime],
        on_gone: Callable[[], None],
        queues: Callable[[], tuple[str, ...] | None] = lambda: None,
    ) -> None:
        """`on_gone`: another process is gone, and this one was the first to notice. `queues`: that this worker serves;
        asked for when it is ready.
        """
        self._presence = PresenceTimer(settings, runtime, on_gone, queues)
        self._every = settings.beat
        self._first = min(FIRST_BEAT, settings.beat)
        self._look = settings.presence
        self._runtime = runtime
        self._shared: PoolMemory | None = None
        self._aside = BackgroundCall()  # while Redis is paused each command takes seconds, and the beat must not wait
        self._pid = 0
        self._shared_at = 0.0

    def share(self) -> None:
        """In the main process of a worker, before it makes a pool of processes."""
        self._shared = PoolMemory()
        self._presence.begin()
        if (heart := self._runtime().heart) is not None:
            heart.close()  # its connection would stay open in every child

    def start(self, pool: Any) -> None:
        """In the main process of a worker. `pool`: Celery's."""
        if processes(pool) is None or self._shared is None:
            self._start(self._beat_alone)
            threading.Thread(target=self._note_versions, name="chordage-agent-versions", daemon=True).start()
            return
        children = PoolParent(self._shared)
        self._start(lambda: self._beat_for_all(children, _pids(pool)))

    def start_in_child(self) -> None:
        self._presence.begin(through=self._runtime().store)
        index = getattr(current_process(), "index", SLOTS)
        if self._shared is None or index >= SLOTS:
            self._start(lambda: self._beat_as_child(None))
            return
        child = PoolChild(self._shared, index, os.getpid())
        self._runtime().in_flight.watched_by(child.changed)
        self._start(lambda: self._beat_as_child(child))

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

    def _note_versions(self) -> None:
        """In a thread of its own: the room's code is imported for that, and a heartbeat waits for nothing."""
        while True:
            try:
                stages.note_versions(self._runtime())
            except ChordageError as error:
                log.info("versions of agents are not on record", error=str(error))
            except Exception:
                log.exception("versions of agents are not on record")
            time.sleep(self._look)

    def end(self) -> None:
        """This process and its children end in order."""
        self._presence.end()

    def _beat_alone(self) -> None:
        self._presence.tick([os.getpid()])
        stages.beat(self._runtime(), first=self._first, every=self._every, aside=self._aside)
        self._share_durations(None)

    def _share_durations(self, through: Store | None) -> None:
        if time.monotonic() - self._shared_at >= SHARE_EVERY:
            self._shared_at = time.monotonic()
            stages.share_durations(self._runtime(), through=through)

    def _beat_for_all(self, children: PoolParent, alive: Collection[int]) -> None:
        assert self._shared is not None
        if self._presence.tick([os.getpid(), *sorted(alive)]):
            self._shared.note_shown(time.monotonic())
        lost = stages.beat(
            self._runtime(),
            first=self._first,
            every=self._every,
            of_children=children.works(alive, worker_name),
            aside=self._aside,
        )
        children.write_beats()
        for work in lost:
            if work.token and (pid := children.holder(work)) in alive:
                _kill(work, pid)

    def _beat_as_child(self, child: PoolChild | None) -> None:
        """A child uses its ordinary connections, which are free enough: it does one thing at a time."""
        rt = self._runtime()
        if self._shared is None or not self._presence.is_fresh(self._shared.last_shown(), PARENT_LATE):
            self._presence.tick([os.getpid()], through=rt.store)
        first, every = self._first, self._every
        if child is not None:
            child.read_beats(rt.in_flight.all())
            first, every = LATE * self._every, LATE * self._every
        for work in stages.beat(rt, first=first, every=every, through=rt.store, aside=self._aside):
            if work.token:
                _kill(work, os.getpid())
        self._share_durations(rt.store)


def _pids(pool: Any) -> set[int]:
    """Of its processes; one that is just being started has none yet."""
    return {process.pid for process in processes(pool) or () if process.pid is not None}


class PresenceTimer:
    """Shows every few seconds that processes of this worker live, and looks which others are gone."""

    def __init__(
        self,
        settings: Settings,
        runtime: Callable[[], Runtime],
        on_gone: Callable[[], None],
        queues: Callable[[], tuple[str, ...] | None] = lambda: None,
    ) -> None:
        self._queues = queues
        self._drill = settings.drill == "on"
        self._every = settings.presence
        self._runtime = runtime
        self._on_gone = on_gone
        self._watch = PresenceWatch(machine(), is_alive, gone_after=settings.gone_after)
        self._shown_at: float | None = None
        self._shown: list[str] = []
        self._ending = False

    def begin(self, *, through: Store | None = None) -> None:
        """Before this process takes any work: what it then holds is known to be its own."""
        try:
            stages.show_presence(self._runtime(), [self._process(os.getpid(), None)], through=through)
        except ChordageError as error:
            log.warning("presence not shown", error=str(error))

    def tick(self, alive: Collection[int], *, through: Store | None = None) -> bool:
        """Whether the presence of these processes of ours was shown just now."""
        if self._ending or (self._shown_at is not None and self.is_fresh(self._shown_at, 1)):
            return False
        queues = self._queues()
        present = [
            process for pid in alive if is_alive(process := self._process(pid, queues))
        ]  # a pool may know it late
        rt = self._runtime()
        present = [replace(one, agents=rt.agents.digests()) if one.id == rt.worker else one for one in present]
        stages.show_presence(rt, present, through=through)
        self._shown_at, self._shown = time.monotonic(), [process.id for process in present]
        if stages.look_for_gone(rt, self._watch, through=through):
            self._on_gone()
        return True

    def _process(self, pid: int, queues: tuple[str, ...] | None) -> Process:
        return replace(process_of(pid, queues), drill=self._drill)

    def is_fresh(self, shown_at: float, times: float) -> bool:
        """Whether it is not longer ago than so many times the interval."""
        return time.monotonic() - shown_at < times * self._every

    def end(self) -> None:
        """While the database is away, the others see it by themselves."""
        self._ending = True
        say = threading.Thread(target=self._say_so, name="chordage-presence", daemon=True)
        say.start()
        say.join(END_WITHIN)

    def _say_so(self) -> None:
        try:
            stages.end_presence(self._runtime(), self._shown)
        except ChordageError as error:
            log.info("the end of this worker is not on record", error=str(error))


def _kill(work: InFlightWork, pid: int | None) -> None:
    assert pid is not None
    log.warning(
        "another worker has claimed this call; its process ends before it does more", call=work.call_id, pid=pid
    )
    os.kill(pid, signal.SIGKILL)


class BackgroundCall:
    """Calls one function at a time in a thread. Calls during another are dropped: the next beat repeats them."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=function, name="chordage-marks", daemon=True)
            self._thread.start()


class SlotTimer:
    """Work that one worker does in each slot of time, for all. Redis knows which."""

    thread: str  # its name

    def __init__(self, app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
        self._app = app
        self._courier = Courier(app)
        self._settings = settings
        self._runtime = runtime
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.thread, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        raise NotImplementedError


class Sweeper(SlotTimer):
    """Rescue."""

    thread = "chordage-rescue"

    def __init__(self, app: Celery, settings: Settings, runtime: Callable[[], Runtime]) -> None:
        super().__init__(app, settings, runtime)
        self._due = threading.Event()  # at once, and only for what processes that are gone have left

    def hurry(self) -> None:
        """A process is gone."""
        self._due.set()

    def stop(self) -> None:
        super().stop()
        self._due.set()

    def _run(self) -> None:
        redis = redis_from(self._settings)
        self._sweep(redis, stages.rescue)
        while not self._stop.is_set():
            if self._due.wait(self._settings.sweep / 2) and not self._stop.is_set():
                self._due.clear()
                self._sweep(redis, stages.rescue_left)
            try:
                if _take_slot(redis, f"{self._settings.prefix}sweep", self._settings.sweep):
                    self._sweep(redis, stages.rescue)
            except Exception as error:
                log.warning("sweep missed", error=str(error))

    def _sweep(self, redis: Redis, look: Callable[[Runtime], list[Intent]]) -> None:
        try:
            self._courier.send(look(self._runtime()))
            if gone := stages.left_behind(self._runtime()):
                transport.put_back(self._app, redis, self._settings.broker_prefix, gone)
        except Unavailable as error:
            log.warning("sweep missed", error=str(error))
        except Exception:
            log.exception("sweep failed")


class Projector(SlotTimer):
    """Copies the journal to the bus, and counts it for monitors."""

    thread = "chordage-projection"
    slot = "project"  # of this name one worker has each
    _not_before = 0.0

    def _run(self) -> None:
        redis = redis_from(self._settings)
        while not self._stop.wait(self._settings.project / 2):
            if time.monotonic() >= self._not_before and self._has_slot(redis):
                self._project()

    def _has_slot(self, redis: Redis) -> bool:
        """Without Redis every worker has the slot: the claim in SQL decides, and says until when nothing is tried."""
        try:
            return _take_slot(redis, f"{self._settings.prefix}{self.slot}", self._settings.project)
        except RedisError:
            return True

    def _project(self) -> None:
        try:
            for _ in range(MOST_PASSES):
                more = self._pass()
                if self._stop.is_set() or not more:
                    return
        except Unavailable as error:
            self._not_before = time.monotonic() + self._settings.beat
            log.warning("projection missed", of=self.slot, error=str(error))
        except Exception:
            self._not_before = time.monotonic() + self._settings.beat
            log.exception("projection failed", of=self.slot)

    def _pass(self) -> bool:
        """Whether there is more."""
        intents = stages.project(self._runtime())
        self._courier.send(intent for intent in intents if not isinstance(intent, Project))
        more = stages.count_journal(self._runtime())
        return more or any(isinstance(intent, Project) for intent in intents)


class TraceExporter(Projector):
    """Sends the spans of ended runs to a collector, which may be slow: beside the bus, not behind it."""

    thread = "chordage-traces"
    slot = "traces"

    def _pass(self) -> bool:
        return stages.export_traces(self._runtime())


def _take_slot(redis: Redis, key: str, seconds: float) -> bool:
    """Whether this worker is the first to ask in this slot of so many seconds."""
    slot = int(time.time() / seconds)
    return bool(redis.set(f"{key}:{slot}", 1, nx=True, px=max(1, int(seconds * 3000))))
