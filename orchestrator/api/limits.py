"""How many requests and bytes a key and its tenant may send, and how many streams each may have open."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from chordage.orchestrator.core.callers import LOCAL, Caller
from chordage.orchestrator.core.errors import TooManyRequests
from chordage.orchestrator.core.rates import BYTES, Allowance, Rate
from chordage.orchestrator.gateways.rate_limits import Limited

STREAMS, TENANT_STREAMS = 100, 400  # open streams of a key, and of all keys of a tenant
STREAM_WAIT = 5.0  # seconds after which to try again for a stream
Take = Callable[[Sequence[Limited]], list[Allowance]]


class RequestLimits:
    """None: that is not limited. Programs on this machine, which have no key, are not limited either."""

    def __init__(
        self,
        take: Take,
        *,
        of_key: Rate | None,
        of_tenant: Rate | None,
        of_key_bytes: Rate | None = None,
        of_tenant_bytes: Rate | None = None,
    ) -> None:
        self._take = take
        self._of_key, self._of_key_bytes = of_key, of_key_bytes
        self._of_tenant, self._of_tenant_bytes = of_tenant, of_tenant_bytes

    @classmethod
    def none(cls) -> RequestLimits:
        return cls(lambda _wanted: [], of_key=None, of_tenant=None)

    def take(self, caller: Caller, size: int = 0) -> list[Allowance]:
        """Count a request with a body of this size. Raises TooManyRequests."""
        wanted = [] if caller.id == LOCAL.id else self._wanted(caller, size)
        if not wanted:
            return []
        allowances = self._take(wanted)
        if allowances[0].taken:
            return allowances
        scarce = max(allowances, key=lambda one: one.wait)
        who = caller.label if scarce.policy.startswith("key") else f"the tenant {caller.tenant!r}"
        rate, what = scarce.rate, "bytes" if scarce.policy.endswith(BYTES) else "requests"
        problem = (
            f"{who} may send {rate.per_second:.15g} {what} a second and {rate.burst} at once: try again in "
            f"{math.ceil(scarce.wait)} s"
        )
        raise TooManyRequests(problem, scarce.wait, tuple(allowances))

    def _wanted(self, caller: Caller, size: int) -> list[Limited]:
        wanted = []
        if self._of_key is not None:
            wanted.append(Limited(policy="key", of=caller.id, rate=self._of_key))
        if self._of_tenant is not None and caller.tenant is not None:
            wanted.append(Limited(policy="tenant", of=caller.tenant, rate=self._of_tenant))
        if self._of_key_bytes is not None and size:
            wanted.append(Limited(policy=f"key{BYTES}", of=caller.id, rate=self._of_key_bytes, size=size))
        if self._of_tenant_bytes is not None and caller.tenant is not None and size:
            wanted.append(Limited(policy=f"tenant{BYTES}", of=caller.tenant, rate=self._of_tenant_bytes, size=size))
        return wanted


class StreamSlots:
    """The open streams of each key and tenant in this process of the server. Each that enters leaves, also when the
    stream fails.
    """

    def __init__(self, most: int = STREAMS, of_tenant: int = TENANT_STREAMS) -> None:
        self._most = most
        self._of_tenant = of_tenant
        self._lock = threading.Lock()
        self._open: Counter[tuple[str, str]] = Counter()

    def enter(self, caller: Caller) -> None:
        """Raises TooManyRequests, and then there is nothing to leave."""
        counted = self._counted(caller)
        with self._lock:
            for (kind, name), most in counted.items():
                if self._open[kind, name] >= most:
                    problem = f"the {kind} {name} has {most} streams open: close one, or ask for the turn instead"
                    raise TooManyRequests(problem, STREAM_WAIT)
            self._open.update(counted.keys())

    def leave(self, caller: Caller) -> None:
        with self._lock:
            for one in self._counted(caller):
                self._open[one] -= 1
                if self._open[one] <= 0:
                    del self._open[one]

    def _counted(self, caller: Caller) -> dict[tuple[str, str], int]:
        """What a stream is counted against, with how many it may have. Programs of this machine are not limited."""
        if caller.id == LOCAL.id:
            return {}
        of_tenant = {} if caller.tenant is None else {("tenant", caller.tenant): self._of_tenant}
        return {("key", caller.id): self._most, **of_tenant}
