"""The [compaction] table of an agent file: when the older part of a conversation gives way to a summary."""

from __future__ import annotations

from chordage.orchestrator.core.agent import CompactionSpec
from chordage.orchestrator.gateways.room_table import COUNT, SOME, TEXT, Table


def read(table: Table) -> CompactionSpec:
    """What is wrong is noted in the table's source."""
    given, usual = table.inner("compaction"), CompactionSpec()
    found = CompactionSpec(
        threshold=given.take("threshold", SOME, usual.threshold),
        model=given.take("model", TEXT, usual.model),
        instructions=given.take("instructions", TEXT, usual.instructions),
        keep=given.take("keep", COUNT, usual.keep),
    )
    given.refuse_the_rest()
    return found
