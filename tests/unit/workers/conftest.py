"""What tests of workers have in common."""

from __future__ import annotations

import pytest
from redis import Redis


@pytest.fixture
def redis(redis_url):
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client
