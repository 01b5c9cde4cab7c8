"""Contenders with their workers running, side by side. A worker that has nothing to do costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from chordage.config import settings as config
from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.bench.contender import Contender
from chordage.workers.bench.services import Services
from chordage.workers.fleet.member import Member

READY_WITHIN = 60.0
GRACE = 10.0


@contextmanager
def running(contenders: Sequence[Contender], on: Services) -> Iterator[dict[str, list[int]]]:
    """Process ids of the workers of each contender, once all are ready."""
    with ExitStack() as stack:
        members: dict[str, list[Member]] = {}
        for contender in contenders:
            stack.callback(contender.close)
            members[contender.name] = _started(contender, on, stack)
        for member in [one for several in members.values() for one in several]:
            _wait(member)
        yield {name: [member.pid for member in several] for name, several in members.items()}


def _started(contender: Contender, on: Services, stack: ExitStack) -> list[Member]:
    scratch = on.folder / "scratch"  # a prefork pool leaves a folder behind in each
    scratch.mkdir(exist_ok=True)
    environment = {**config.environment(), **contender.environment(), "TMPDIR": str(scratch)}
    members = [Member(role, on.folder / "members", environment, on.keeper.launch(0)) for role in contender.prepare()]
    stack.callback(_end, members, on)
    for member in members:
        member.start()
    return members


def _wait(member: Member) -> None:
    until = time.monotonic() + READY_WITHIN
    while not member.ready:
        if not member.running or time.monotonic() > until:
            raise Unavailable(f"worker {member.name} of the bench did not start:\n{member.last_words()}")
        time.sleep(0.05)


def _end(members: Sequence[Member], on: Services) -> None:
    import signal

    for member in members:
        member.tell(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for member in members:
        member.wait(until)
        member.sweep_up()
        on.keeper.release(member.pid)
