"""Token buckets in Redis, which all processes of the HTTP server share; in memory while Redis is away.

One script fills the buckets of a request and takes its tokens from each, or from none. The clock is that of Redis. In
memory each process has buckets of its own, so several let more through: a limit that is too wide for a moment is better
than refusing all callers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from chordage.orchestrator.core.rates import Allowance, Bucket, Rate, filled

log = structlog.get_logger()

KEPT = 10_000  # buckets in memory
PAUSE = 5.0  # seconds without Redis after it did not answer

# KEYS: the buckets. ARGV: the rate, the burst and the cost of each. Returns whether tokens were taken
# from each of them, and what is left in each.
TAKE = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local left, taken = {}, 1
for place, key in ipairs(KEYS) do
  local rate, burst = tonumber(ARGV[3 * place - 2]), tonumber(ARGV[3 * place - 1])
  local bucket = redis.call('HMGET', key, 'tokens', 'at')
  local tokens, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
  left[place] = math.min(burst, tokens + math.max(0, now - at) * rate)
  if left[place] < tonumber(ARGV[3 * place]) then taken = 0 end
end
local reply = {taken}
for place, key in ipairs(KEYS) do
  if taken == 1 then
    local rate, burst = tonumber(ARGV[3 * place - 2]), tonumber(ARGV[3 * place - 1])
    left[place] = left[place] - tonumber(ARGV[3 * place])
    redis.call('HSET', key, 'tokens', string.format('%.6f', left[place]), 'at', string.format('%.6f', now))
    redis.call('PEXPIRE', key, math.ceil(burst / rate * 1000) + 1000)
  end
  reply[place + 1] = string.format('%.6f', left[place])
end
return reply
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """What a request is counted against: `key` and the id of its key, or `tenant` and its tenant. `size`: in tokens."""

    policy: str
    of: str
    rate: Rate
    size: int = 1

    @property
    def cost(self) -> int:
        return min(self.size, self.rate.burst)

    @property
    def name(self) -> str:
        return f"{self.policy}:{self.of}"


class MemoryBuckets:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, wanted: Sequence[Limited]) -> list[Allowance]:
        with self._lock:
            now = self._clock()
            left = [filled(self._buckets.get(one.name), one.rate, now) for one in wanted]
            taken = all(tokens >= one.cost for one, tokens in zip(wanted, left, strict=True))
            if taken:
                left = [tokens - one.cost for one, tokens in zip(wanted, left, strict=True)]
                for one, tokens in zip(wanted, left, strict=True):
                    self._buckets[one.name] = Bucket(tokens=tokens, at=now)
                    self._buckets.move_to_end(one.name)
            while len(self._buckets) > KEPT:
                self._buckets.popitem(last=False)
        return _allowances(wanted, left, taken=taken)


class RedisBuckets:
    def __init__(self, client: Redis, *, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`client`: one that does not retry."""
        self._script = client.register_script(TAKE)
        self._prefix = f"{prefix}rate:"
        self._clock = clock
        self._memory = MemoryBuckets(clock)
        self._away_until = float("-inf")

    def take(self, wanted: Sequence[Limited]) -> list[Allowance]:
        if self._clock() < self._away_until:
            return self._memory.take(wanted)
        rates = [value for one in wanted for value in (one.rate.per_second, one.rate.burst, one.cost)]
        try:
            reply: Any = self._script(keys=[f"{self._prefix}{one.name}" for one in wanted], args=rates)
        except RedisError as error:
            log.warning("redis does not answer; requests are counted in this process", error=str(error))
            self._away_until = self._clock() + PAUSE
            return self._memory.take(wanted)
        taken, *left = reply
        return _allowances(wanted, [float(tokens) for tokens in left], taken=taken == 1)


def _allowances(wanted: Sequence[Limited], left: Sequence[float], *, taken: bool) -> list[Allowance]:
    return [
        Allowance(policy=one.policy, rate=one.rate, tokens=tokens, taken=taken, cost=one.cost)
        for one, tokens in zip(wanted, left, strict=True)
    ]
