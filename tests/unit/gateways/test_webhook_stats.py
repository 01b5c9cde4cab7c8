"""What hooks count: over all processes, in a file that is whole at any moment, and never more than once a second."""

from __future__ import annotations

import json

import pytest
import redis

from chordage.orchestrator.core.webhooks import DeliveryOutcome
from chordage.orchestrator.gateways.webhooks.stats import SharedCounts, WebhookStats
from support.waiting import until

pytestmark = pytest.mark.redis
NEVER = 3600.0


@pytest.fixture
def counts(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield SharedCounts(client, prefix="test:")


def mirror(folder, name="a"):
    return json.loads((folder / f"{name}.json").read_text())


def test_counts_of_two_processes_add_up(counts, tmp_path):
    one, other = (
        WebhookStats(counts, tmp_path / "hooks", every=NEVER),
        WebhookStats(counts, tmp_path / "hooks", every=NEVER),
    )
    one.count("a", DeliveryOutcome.ACCEPTED, {"turn": "1"})
    one.count("a", DeliveryOutcome.STALE)
    other.count("a", DeliveryOutcome.STALE)
    other.count("b", DeliveryOutcome.REPLAYED)

    one.close()
    other.close()

    assert mirror(tmp_path / "hooks") == {"accepted": 1, "refused": {"stale": 2}, "last": {"turn": "1"}}
    assert mirror(tmp_path / "hooks", "b") == {"accepted": 0, "refused": {"replayed": 1}, "last": None}
    assert sorted(path.name for path in (tmp_path / "hooks").iterdir()) == ["a.json", "b.json"]


def test_what_is_noted_is_written_by_itself_and_not_by_the_request(counts, tmp_path):
    stats = WebhookStats(counts, tmp_path / "hooks", every=0.01)

    for _ in range(100):
        stats.count("a", DeliveryOutcome.ACCEPTED)

    until(lambda: (tmp_path / "hooks" / "a.json").exists() and mirror(tmp_path / "hooks")["accepted"] == 100, "all")
    stats.close()


def test_nothing_is_written_before_its_time(counts, tmp_path):
    stats = WebhookStats(counts, tmp_path / "hooks", every=NEVER)
    stats.count("a", DeliveryOutcome.ACCEPTED)
    stats.count("a", DeliveryOutcome.ACCEPTED)

    assert not (tmp_path / "hooks").exists()
    stats.close()
    assert mirror(tmp_path / "hooks")["accepted"] == 2


def test_while_redis_is_away_counts_are_kept(start_valkey, tmp_path):
    server = start_valkey()
    with redis.Redis.from_url(server.url, socket_timeout=1) as client:
        stats = WebhookStats(SharedCounts(client, prefix="test:"), tmp_path / "hooks", every=NEVER)
        stats.count("a", DeliveryOutcome.ACCEPTED, {"turn": "1"})
        server.kill()
        stats.close()
        server.start()
        stats.count("a", DeliveryOutcome.ACCEPTED)
        stats.close()

    assert mirror(tmp_path / "hooks") == {"accepted": 2, "refused": {}, "last": {"turn": "1"}}


def test_a_mirror_that_cannot_be_written_costs_no_count(counts, tmp_path):
    (tmp_path / "hooks").write_text("a file in the way")
    stats = WebhookStats(counts, tmp_path / "hooks", every=NEVER)
    stats.count("a", DeliveryOutcome.ACCEPTED)

    stats.close()

    assert counts.of("a").outcomes == {"accepted": 1}
