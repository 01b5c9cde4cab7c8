"""Work for which there was no room: whose turn it is to be tried again, and who has said so in the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from chordage.orchestrator.core.standing_work import Item, Kind

Name = tuple[Kind, str]
KINDS = list(Kind)


@dataclass(slots=True)
class PutOff:
    """First those that were not tried, then those that were refused: each comes to be tried."""

    told: dict[Name, bool] = field(default_factory=dict)

    def in_turn(self, items: Iterable[Item]) -> list[Item]:
        places = {name: place for place, name in enumerate(self.told)}
        last = len(places)
        return sorted(items, key=lambda item: (KINDS.index(item.kind), places.get((item.kind, item.key), last)))

    def not_tried(self, name: Name) -> None:
        self.told.setdefault(name, False)

    def refused(self, name: Name) -> bool:
        """Whether it has yet to be told."""
        was_told = self.told.get(name, False)
        self.told[name] = True
        return not was_told

    def to_the_end(self, names: Iterable[Name]) -> None:
        for name in names:
            self.told[name] = self.told.pop(name)

    def done(self, name: Name) -> None:
        self.told.pop(name, None)

    def keep(self, names: Iterable[Name]) -> None:
        there = set(names)
        self.told = {name: was_told for name, was_told in self.told.items() if name in there}
