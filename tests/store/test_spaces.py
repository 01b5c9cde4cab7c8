"""That a caller's turn lies in its caller's space is a constraint of the database, and no matter of the code alone."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from chordage.orchestrator import views
from support import rows


@pytest.mark.parametrize(
    ("space", "thread", "fits"),
    [
        (None, "tg:2", True),
        ("api", "api:tg:2", True),
        ("api", "tg:2", False),
        ("api", "apis:2", False),
        ("api", "API:2", False),
        ("api", "api@other:2", False),
    ],
)
def test_a_turn_of_a_caller_outside_its_space_cannot_be_stored(store, space, thread, fits):
    if fits:
        with store.write() as tx:
            rows.admit(tx, "t1", thread, space=space)
        assert views.turn(store, "t1", space=space).thread_id == thread
        return
    with pytest.raises(IntegrityError, match="in_its_space"), store.write() as tx:
        rows.admit(tx, "t1", thread, space=space)
