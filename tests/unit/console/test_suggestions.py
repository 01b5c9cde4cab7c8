"""What the search box offers: the whole text with its last word completed."""

from __future__ import annotations

import pytest

from chordage.orchestrator.console.suggestions import suggestions

VALUES = {"status": ["open", "queued", "waiting", "answered"], "agent": ["clerk", "the clerk"], "tool": []}


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("st", ["status:"]),
        ("status:waiting ag", ["status:waiting agent:", "status:waiting age:"]),
        ("status:wa", ["status:waiting"]),
        ("agent:x status:e", ["agent:x status:queued", "agent:x status:open", "agent:x status:answered"]),
        ("agent:cl", ["agent:clerk", 'agent:"the clerk"']),
        ('agent:"the cl', ['agent:"the clerk"']),
        ("status:waiting", []),
        ("tool:x", []),
        ("nonsense:x", []),
        ('"order 17', []),
    ],
)
def test_the_last_word_is_completed_and_the_rest_stays(text, offered):
    assert sorted(suggestions(text, lambda name: VALUES.get(name, []))) == sorted(offered)


def test_what_begins_so_comes_before_what_holds_it():
    assert suggestions("agent:cle", lambda name: ["uncle", "clerk"]) == ["agent:clerk", "agent:uncle"]


def test_an_empty_box_offers_the_names_and_no_more_than_a_few():
    assert suggestions("", lambda name: [])[:3] == ["status:", "agent:", "tool:"]
    assert len(suggestions("agent:a", lambda name: [f"a{one}" for one in range(99)])) == 12
