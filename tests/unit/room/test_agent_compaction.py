"""What an agent file may say of compaction, and how each mistake in it is reported."""

from __future__ import annotations

import pytest

from chordage import RoomError
from chordage.orchestrator.core.agent import CompactionSpec

WHOLE = 'model = "m"\n[compaction]\nthreshold = 80000\nmodel = "small"\ninstructions = "Be brief."\nkeep = 2\n'


def spec_of(folder, text):
    folder.agent(text)
    return folder.open().get(None).compaction


def test_without_a_table_a_summary_is_made_only_on_request(folder):
    assert spec_of(folder, 'model = "m"\n') == CompactionSpec()


def test_every_key_reaches_the_definition(folder):
    assert spec_of(folder, WHOLE) == CompactionSpec(threshold=80000, model="small", instructions="Be brief.", keep=2)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("threshold = 0", "threshold: must be a whole number, 1 or more, or leave it out; got 0"),
        ("keep = -1", "keep: must be a whole number, 0 or more, or leave it out; got -1"),
        ('model = " "', "model: must be a text that is not blank, or leave it out; got ' '"),
        ("treshold = 5", "treshold: there is no such key; did you mean threshold?"),
    ],
)
def test_mistake_is_reported_with_its_line(folder, line, told):
    with pytest.raises(RoomError) as refusal:
        spec_of(folder, f'model = "m"\n[compaction]\n{line}\n')
    assert str(refusal.value) == f"agent.toml:3: compaction.{told}"
