"""To act at the very moment of an event: a schedule in which one thing happens in the middle of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from chordage.testing.fakes import RecordingEvents
from support.world import World


@dataclass(kw_only=True)
class ActingEvents(RecordingEvents):
    kind: str
    act: Callable[[], object]

    def emit(self, run_id: str, kind: str, **data: Any) -> None:
        super().emit(run_id, kind, **data)
        if kind == self.kind:
            self.act()


def on_event(world: World, kind: str, act: Callable[[], object]) -> None:
    """`act` is called whenever an event of this kind is emitted, before the emitter continues."""
    world.events = ActingEvents(kind=kind, act=act)
    object.__setattr__(world.runtime, "events", world.events)


def before_a_write(world: World, meanwhile: Iterable[Callable[[], None]]) -> None:
    """The first is done before the next transaction that writes is opened, and so on."""
    opened, due = world.store.write, iter(meanwhile)

    @contextmanager
    def write() -> Iterator[object]:
        next(due, lambda: None)()
        with opened() as tx:
            yield tx

    world.store.write = write  # type: ignore[method-assign]
