"""Token buckets: how much may come at once, and how much a second in the long run.

A bucket holds `burst` tokens at most and gets `per_second` of them every second. A request takes one, and of a bucket
of bytes as many as its body has. A body that is larger than the bucket takes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BYTES = "-bytes"  # how the policies end that count those of bodies


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    per_second: float
    burst: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """As it is at the time `at`, in seconds of whichever clock."""

    tokens: float
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What is left of one rate. `policy`: `key`, `tenant`, `key-bytes` or `tenant-bytes`. `cost`: of the request."""

    policy: str
    rate: Rate
    tokens: float
    taken: bool
    cost: int = 1

    @property
    def wait(self) -> float:
        """Seconds until a request is allowed again."""
        return max(0.0, self.cost - self.tokens) / self.rate.per_second


def filled(bucket: Bucket | None, rate: Rate, now: float) -> float:
    """The tokens that it holds now. A bucket that was never used is full."""
    if bucket is None:
        return float(rate.burst)
    return min(float(rate.burst), bucket.tokens + max(0.0, now - bucket.at) * rate.per_second)


def headers_of(allowances: Sequence[Allowance]) -> dict[str, str]:
    """The header fields `RateLimit` and `RateLimit-Policy` of the IETF's draft."""
    if not allowances:
        return {}
    policies = (
        f'"{one.policy}";q={one.rate.burst};w={math.ceil(one.rate.burst / one.rate.per_second)}{_unit(one)}'
        for one in allowances
    )
    left = (
        f'"{one.policy}";r={max(0, math.floor(one.tokens))};'
        f"t={math.ceil((one.rate.burst - one.tokens) / one.rate.per_second)}"
        for one in allowances
    )
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(left)}


def _unit(allowance: Allowance) -> str:
    return ';qu="content-bytes"' if allowance.policy.endswith(BYTES) else ""
