"""One connection to a server, from its opening to its end.

All of it lives in one asyncio task, because the package's task groups want to be left where they were entered. Calls
are tasks of their own: one that is given up must not take the connection with it, and a connection that breaks must not
take whoever waits with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from mcp import Client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolResult,
    Implementation,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from chordage.orchestrator.gateways.mcp.failing import (
    CLOSED,
    Forgotten,
    Lost,
    Refused,
    TooLate,
    Unreachable,
    Unreadable,
    in_words,
    leaf,
)
from chordage.orchestrator.gateways.mcp.listing import Listed
from chordage.orchestrator.gateways.mcp.paging import all_tools
from chordage.orchestrator.gateways.mcp.wires import Wire

CLOSING = 8.0  # seconds for a good end; a program that does not go by itself is killed within them
LAST_WORDS = 0.5
SESSION_TERMINATED = "Session terminated"  # what the package makes of HTTP 404 once there is a session

T = TypeVar("T")


class Watcher(Protocol):
    """Is told what becomes of a session, in its event loop."""

    def tools_changed(self) -> None: ...
    def ended(self, session: Session, why: str | None) -> None:
        """Once: it takes no more calls. `why` is None for an end in peace."""
        ...


class Session:
    def __init__(self, wire: Wire, watcher: Watcher, *, me: str) -> None:
        self._wire = wire
        self._watcher = watcher
        self._me = Implementation(name="chordage", version=me)
        self._opened = asyncio.Event()
        self._leave = asyncio.Event()
        self._over = asyncio.Event()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        self._in_hand = 0
        self._began = time.monotonic()
        self.usable = False
        self.tools: tuple[Listed, ...] = ()

    @property
    def lived(self) -> float:
        return time.monotonic() - self._began

    @property
    def version(self) -> str | None:
        about = self._client.server_info if self._client else None
        return f"{about.name} {about.version}".strip() if about else None

    @property
    def protocol(self) -> str | None:
        return self._client.protocol_version if self._client else None

    async def open(self, within: float) -> None:
        """Connect, and ask for the tools. Raises Unreachable."""
        self._task = asyncio.create_task(self._live())
        try:
            await asyncio.wait_for(self._opened.wait(), within)
        except TimeoutError:
            self._task.cancel()
            raise Unreachable(await self._with_words(f"it did not answer within {within:g} s")) from None
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self.usable:
            raise Unreachable(await self.epitaph())

    async def call(
        self, tool: str, arguments: dict[str, Any], *, limit: float, key: str, on_progress: ProgressFnT
    ) -> CallToolResult:
        assert self._client is not None
        meta: Any = {"chordage/idempotency-key": key}
        sent = self._client.call_tool(tool, arguments, progress_callback=on_progress, meta=meta)
        return await self._answered(sent, limit)

    async def list_again(self, limit: float) -> None:
        assert self._client is not None
        self.tools = await self._answered(all_tools(self._client), limit)

    def close(self, why: str | None = None) -> None:
        """No more calls; those that are under way are waited for. `why`: it is not to be trusted any more."""
        if self.usable:
            self.usable = False
            self._watcher.ended(self, why)
        if not self._in_hand:
            self._leave.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def closed(self) -> None:
        """Close, whatever is under way, and wait for it."""
        self.close()
        self._leave.set()
        await self._over.wait()

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(self._new_client())
                # The library would search for the server's patterns with `re`, in the one thread of all servers.
                self._client.session.validate_tool_result = self._judge  # type: ignore[method-assign]
                self.tools = await all_tools(self._client)
                self._began, self.usable = time.monotonic(), True
                self._opened.set()
                news = asyncio.create_task(self._hear_news(self._client))
                try:
                    await self._leave.wait()
                finally:
                    news.cancel()
                    ending = asyncio.get_running_loop().call_later(CLOSING, _cancel_this())
            ending.cancel()
        except BaseException as error:  # also a cancellation: this task ends here in any case
            self._fault = error
        finally:
            self.close(in_words(self._fault) or CLOSED)
            self._opened.set()
            self._over.set()

    def _new_client(self) -> Client:
        @asynccontextmanager
        async def wired() -> Any:
            async with self._wire.open(self._on_end) as streams:
                yield streams

        return Client(wired(), message_handler=self._on_message, client_info=self._me, cache=None)

    async def _judge(self, name: str, result: CallToolResult) -> None:
        """Whether structured content is what the tool's own schema says. Raises RuntimeError, as the library does."""
        from chordage.orchestrator.gateways.mcp.structured import fault_of

        schema = next((tool.output for tool in self.tools if tool.name == name), None)
        if schema is None or result.is_error:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if (fault := fault_of(result.structured_content, schema, name)) is not None:
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {fault}")

    def _on_end(self) -> None:
        """Nothing comes in any more."""
        self.close(CLOSED)
        self._leave.set()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._watcher.tools_changed()

    async def _hear_news(self, client: Client) -> None:
        """Newer servers tell that their tools have changed only to those who ask for it."""
        try:
            async with client.listen(tools_list_changed=True) as news:
                async for _ in news:
                    self._watcher.tools_changed()
            self.close()
        except SubscriptionLost:
            self.close()  # in peace: calls show whether it is more than the news that was lost
        except (ListenNotSupportedError, MCPError, TimeoutError):
            return

    async def _answered(self, asking: Coroutine[Any, Any, T], limit: float) -> T:
        sent = asyncio.create_task(asking)
        sent.add_done_callback(_looked_at)
        self._in_hand += 1
        alone = self._in_hand == 1
        try:
            await asyncio.wait({sent}, timeout=limit)
            if not sent.done():
                self.close(f"it did not answer within {limit:g} s")
                raise TooLate
            return sent.result()
        except MCPError as error:
            raise await self._meant(error, alone=alone and self._in_hand == 1) from error
        except (RuntimeError, ValidationError) as error:
            raise Unreadable(str(error)) from error
        finally:
            sent.cancel()
            self._in_hand -= 1
            if not self.usable:
                self.close()

    async def _meant(self, error: MCPError, *, alone: bool) -> Exception:
        if error.code == INVALID_REQUEST and error.message == SESSION_TERMINATED:
            self.close()
            return Forgotten()
        if error.code != CONNECTION_CLOSED:
            return Refused(await self._with_words(f"{error.message} ({error.code})"))
        self.close(CLOSED)
        why = await self.epitaph(CLOSED if error.message == "Connection closed" else error.message)
        cause = leaf(self._fault)
        if alone and cause is not None and self._wire.was_never_sent(cause):
            return Unreachable(why)
        return Lost(why)

    async def epitaph(self, otherwise: str = CLOSED) -> str:
        """Of what it died, as far as that comes out in a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), LAST_WORDS)
        return await self._with_words(in_words(self._fault) or otherwise)

    async def _with_words(self, why: str) -> str:
        words = await self._wire.words()
        return f"{why}; {words}" if words else why


def _cancel_this() -> Callable[[], object]:
    task = asyncio.current_task()
    assert task is not None
    return task.cancel


def _looked_at(task: asyncio.Task[Any]) -> None:
    """A failure that comes after nobody waits for it any more is none to complain of."""
    if not task.cancelled():
        task.exception()
