"""The health of the services behind the server, within bounded time.

A check can hang as long as the service it asks. So each check has a thread of its own and runs once at a time, and a
request for the health uses no thread of the server: all of those may be waiting for the service that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from chordage.orchestrator.core.errors import WrongSchema

log = structlog.get_logger()

Check = Callable[[], None]  # raises when the service is not well
PATIENCE = 2.0
SILENT = "does not answer"


class Health:
    def __init__(self, checks: Mapping[str, Check], *, patience: float = PATIENCE) -> None:
        self._checks = checks
        self._patience = patience
        self._threads = ThreadPoolExecutor(max_workers=len(checks), thread_name_prefix="health")
        self._running: dict[str, Future[str | None]] = {}

    async def faults(self) -> dict[str, str | None]:
        """What is wrong with each service; None for one that is well."""
        checks = {name: asyncio.wrap_future(self._run(name)) for name in self._checks}
        await asyncio.wait(checks.values(), timeout=self._patience)
        late = f"{SILENT} within {self._patience:g} s"
        return {name: check.result() if check.done() else late for name, check in checks.items()}

    def _run(self, name: str) -> Future[str | None]:
        check = self._running.get(name)
        if check is None or check.done():
            check = self._running[name] = self._threads.submit(_fault, name, self._checks[name])
        return check

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _fault(name: str, check: Check) -> str | None:
    try:
        check()
    except WrongSchema as error:
        return str(error)
    except Exception as error:
        log.warning("health check failed", service=name, error=str(error))
        return SILENT
    return None
