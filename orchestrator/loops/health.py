"""Whether what the server needs answers, told within bounded time.

A check may hang as long as the service it asks. So each has a thread of its own, is never asked twice at once, and who
asks for the health waits for no thread of the server's: they may all be waiting for the very service that hangs.
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
        self._asked: dict[str, Future[str | None]] = {}

    async def faults(self) -> dict[str, str | None]:
        """For each service what is wrong with it; None where nothing is."""
        asked = {name: asyncio.wrap_future(self._ask(name)) for name in self._checks}
        await asyncio.wait(asked.values(), timeout=self._patience)
        late = f"{SILENT} within {self._patience:g} s"
        return {name: future.result() if future.done() else late for name, future in asked.items()}

    def _ask(self, name: str) -> Future[str | None]:
        asked = self._asked.get(name)
        if asked is None or asked.done():
            asked = self._asked[name] = self._threads.submit(_fault, name, self._checks[name])
        return asked

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
