"""What threads ask for at the same moment is done at once, for all of them.

Whoever comes lines up, and waits to lead. The first does the work of all who stand in line by then; while it does, the
next ones line up. Nobody waits for others to come: alone, one is as fast as without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 64


class _Waiting(Generic[A, B]):
    def __init__(self, asked: A) -> None:
        self.asked = asked
        self.results: list[B | Exception] = []


class Together(Generic[A, B]):
    """`work` is given what was asked, and returns for each what came of it, or the exception that it is told with.

    `afterwards` is given the same results by whoever led, when the next one may lead already.
    """

    def __init__(
        self,
        work: Callable[[Sequence[A]], Sequence[B | Exception]],
        afterwards: Callable[[Sequence[B | Exception]], None],
        *,
        at_once: int = AT_ONCE,
    ) -> None:
        self._work = work
        self._afterwards = afterwards
        self._at_once = at_once
        self._line: list[_Waiting[A, B]] = []
        self._lining_up = threading.Lock()
        self._leading = threading.Lock()

    def __call__(self, asked: A) -> B:
        mine: _Waiting[A, B] = _Waiting(asked)
        with self._lining_up:
            self._line.append(mine)
        while not mine.results:
            with self._leading:
                done = [] if mine.results else self._lead()
            if done:
                self._afterwards(done)
        result = mine.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def _lead(self) -> Sequence[B | Exception]:
        with self._lining_up:
            led, self._line = self._line[: self._at_once], self._line[self._at_once :]
        results = self._done([one.asked for one in led])
        for one, result in zip(led, results, strict=True):
            one.results.append(result)
        return results

    def _done(self, asked: Sequence[A]) -> Sequence[B | Exception]:
        """Nobody is left waiting, whatever goes wrong."""
        try:
            return self._work(asked)
        except Exception as error:
            return [error] * len(asked)
