"""Orders are shipped although a worker is lost while it ships one."""

from pathlib import Path

import pytest
from pytest_celery import CeleryTestSetup

from chordage.testing.nodes import LocalFleet


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made before the workers, which inherit the variable."""
    monkeypatch.setenv("SHOP_OPEN", str(tmp_path / "open"))
    return tmp_path / "open"


def test_orders_are_shipped_though_a_worker_is_lost(
    shop: Path, celery_setup: CeleryTestSetup, chordage_fleet: LocalFleet
) -> None:
    lost, _ = celery_setup.worker_cluster
    turn = chordage_fleet.submit("Ship orders 17 and 18.")

    for worker in celery_setup.worker_cluster:
        worker.wait_for_log("waits")
    lost.kill()
    shop.touch()

    assert chordage_fleet.wait(turn).answer == "shipped 17\nshipped 18"
