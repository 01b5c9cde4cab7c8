"""The guards that `just sabotage` takes out are there to be taken out: a row whose guard has moved fails here."""

from __future__ import annotations

import pytest

from support.sabotage import GUARDS


@pytest.mark.parametrize("name", GUARDS)
def test_guard_can_be_taken_out(name):
    with pytest.MonkeyPatch.context() as patch:
        GUARDS[name].take_out(patch)
