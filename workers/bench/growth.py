"""What grows with a thread's history, and with the rounds of a turn. Nothing but the prompt should."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from chordage.workers.bench.contender import Contender, Ground
from chordage.workers.bench.counts import Counts, count_work
from chordage.workers.bench.load import one_turn, percentile

HISTORIES = (10, 100, 1000)
ROUNDS = (1, 10, 50)
TURNS = 8
TURNS_OF_ROUNDS = {1: 15, 10: 5, 50: 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A turn on a thread that holds so many messages."""

    messages: int
    p50: float
    counts: Counts


def with_histories(contender: Contender, ground: Ground, say: Callable[[str], None]) -> list[History]:
    found = []
    for messages in HISTORIES:
        say(f"{contender.name}: a history of {messages} messages")
        found.append(with_history(contender, ground, messages))
    return found


def with_history(contender: Contender, ground: Ground, messages: int, turns: int = TURNS) -> History:
    thread = f"history:{uuid.uuid4()}"
    contender.remember(thread, messages)
    times: list[float] = []
    counts = count_work(contender, ground, lambda: times.append(one_turn(contender, thread)), times=turns)
    return History(messages=messages, p50=percentile(tuple(times), 0.5), counts=counts)


def per_round(contender: Contender, rounds: int) -> float:
    """Seconds a round, in turns of so many."""
    one_turn(contender)
    times = tuple(one_turn(contender) for _ in range(TURNS_OF_ROUNDS[rounds]))
    return percentile(times, 0.5) / rounds
