"""Who takes part."""

from __future__ import annotations

from collections.abc import Sequence

from chordage.workers.bench.by_hand import Chord, ChordWithRows
from chordage.workers.bench.contender import Contender, Ground
from chordage.workers.bench.engine import AllInOne, Engine

KINDS = (Chord, ChordWithRows, Engine, AllInOne)
NAMES = tuple(kind.name for kind in KINDS)  # the first one is the base of every ratio


def contenders(names: Sequence[str], ground: Ground) -> list[Contender]:
    return [kind(ground) for kind in KINDS if kind.name in names]
