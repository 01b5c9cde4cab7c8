"""`chordage drill`, as it refuses: the rest is in tests/flow/test_drill.py and tests/live/faults/test_drill_live.py."""

from __future__ import annotations

import pytest

from chordage.config.settings import load
from chordage.orchestrator.store import schema_version
from chordage.workers.bootstrap import runtime_from


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "canary,fire"), "fire is no step: choose from canary, kill, redis, clock"),
        (("--only", ","), "nothing is no step"),
        (("--json",), "--json cannot ask: give --yes, or --dry-run"),
        (("--only", "redis", "--worker", "7"), "add kill to --only, or leave --worker out"),
        (("--cut", "61"), "61"),
        ((), "no Redis is set"),
    ],
)
def test_wrong_call_is_refused_before_anything_is_done(chordage, options, words):
    ended = chordage("drill", *options)

    assert ended.exit_code == 2
    assert words in ended.stderr


@pytest.mark.redis
def test_without_a_worker_there_is_nothing_to_drill(chordage, room, redis_url):
    runtime = runtime_from(load(room=room), with_redis=False)
    schema_version.upgrade(runtime.store)
    runtime.store.close()

    ended = chordage("drill", "--yes", redis_url=redis_url, presence="0.05", gone_after="0.2")

    assert ended.exit_code == 2
    assert "no worker that shows its presence takes messages from queue 'task'" in ended.stderr
