"""What a turn of the bench consists of: the same for every contender."""

from __future__ import annotations

from dataclasses import dataclass, replace

RESULT_BYTES = 1_000
REMARK = "word " * 80  # 0.4 KB: a message of a history


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """`rounds` rounds of `calls` tools, a model call before each and one after the last."""

    rounds: int = 1
    calls: int = 4
    model_delay: float = 0.0
    tool_delay: float = 0.0

    @property
    def ideal(self) -> float:
        """Seconds a turn would take if nothing but its model and its tools took time, tools of a round at once."""
        return (self.rounds + 1) * self.model_delay + self.rounds * self.tool_delay

    def with_rounds(self, rounds: int) -> Shape:
        return replace(self, rounds=rounds)


SLOW = Shape(model_delay=0.2, tool_delay=0.1)
