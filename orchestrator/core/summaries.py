"""What the journal of a thread says of its summaries: which of them stands, and what is still said in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chordage.orchestrator.core.records import Checkpoint, Entry

TRIES = frozenset({Checkpoint.COMPACTED, Checkpoint.COMPACTION_FAILED})


def standing(entries: Sequence[Entry]) -> tuple[Entry | None, list[Entry]]:
    """The newest summary, and what it does not stand for: also what is not recorded yet, and has no id. An older one
    has become part of the newest.
    """
    summary = next((entry for entry in reversed(entries) if entry.kind is Checkpoint.COMPACTED), None)
    replaced = summary.body["upto"] if summary else 0
    return summary, [entry for entry in entries if entry.kind not in TRIES and not 0 < entry.id <= replaced]


def tries(entries: Sequence[Entry]) -> list[Entry]:
    """Every compaction there was, as far as it is still read; the newest last."""
    return [entry for entry in entries if entry.kind in TRIES]


def older_than(run_id: str, entries: Sequence[Entry]) -> list[Entry]:
    """What was said before this run. Of a summary written in it that is the summary, without the words behind it."""
    return [_without_words(entry, run_id) for entry in entries if entry.run_id != run_id or entry.kind in TRIES]


def _without_words(entry: Entry, run_id: str) -> Entry:
    is_own = entry.kind is Checkpoint.COMPACTED and entry.run_id == run_id
    return replace(entry, body={**entry.body, "said": []}) if is_own else entry
