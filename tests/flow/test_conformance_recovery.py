"""What becomes of a run whose worker is gone, by the number of the behaviour that is kept."""

from __future__ import annotations

import pytest

from support.busy_thread import answer_with_user_texts, in_the_model_call
from support.invariants import check_all
from support.world import Died, World


def test_84_run_of_a_dead_owner_continues_within_lease_and_sweep_and_frees_its_thread(world: World) -> None:
    def die() -> None:
        raise world.kill()

    world.models.script = answer_with_user_texts
    in_the_model_call(world, die)
    first = world.submit("first")
    with pytest.raises(Died):
        world.run_dry()
    world.pending.clear()
    world.forget_the_dead()
    second = world.submit("second")

    leases = world.runtime.leases
    world.sweep(seconds=leases.seconds + leases.sweep)
    world.run_dry()

    assert [row["disposition"] for row in world.rows("turns")] == ["answered", "answered"]
    assert [run["turn_id"] for run in world.rows("runs")] == [first, second]
    check_all(world.store)
