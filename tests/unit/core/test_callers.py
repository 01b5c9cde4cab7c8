"""What callers are called in a refusal."""

from __future__ import annotations

import pytest

from chordage.orchestrator.core.callers import LOCAL, Caller


@pytest.mark.parametrize(
    ("caller", "label"),
    [(LOCAL, "a request without a key"), (Caller(id="k1"), "the key k1"), (Caller(id="sso:ada"), "the caller sso:ada")],
)
def test_a_refusal_names_a_key_only_where_one_was_sent(caller, label):
    assert caller.label == label
