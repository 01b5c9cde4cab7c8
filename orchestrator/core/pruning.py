"""What `prune` deletes: turns that are done and old enough, with everything that is stored about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.status import Disposition

AT_LEAST = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneLimits:
    """`before`: what ended earlier. `keyed_before`: the same for a turn with a dedupe key, which has to be recognised
    for a time of its own. `dispositions`: empty means all.
    """

    before: datetime
    keyed_before: datetime
    dispositions: frozenset[Disposition] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruned:
    """`rows`: by table, deleted or counted."""

    rows: Mapping[str, int] = field(default_factory=Counter)


def limits_for(
    now: datetime, *, older_than: timedelta, keep_keys: timedelta, dispositions: frozenset[Disposition] = frozenset()
) -> PruneLimits:
    if older_than < AT_LEAST:
        raise InvalidMessage("turns of the last day are not pruned: give --older-than 1d or more", field="older_than")
    return PruneLimits(
        before=now - older_than, keyed_before=now - max(older_than, keep_keys), dispositions=dispositions
    )
