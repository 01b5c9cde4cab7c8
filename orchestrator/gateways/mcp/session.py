"""One connection to a server, from its opening to its end, and what the server answers in it.

All of a connection lives in one asyncio task, because the package's task groups must be left in the task that entered
them. Calls are tasks of their own: a call that is given up must not end the connection, and a connection that breaks
must not end the callers that wait for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

from mcp import Client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from chordage.orchestrator.core import bounds
from chordage.orchestrator.gateways.mcp.errors import (
    CLOSED,
    AnswerTimeout,
    BadAnswer,
    ConnectionLost,
    ProtocolError,
    SessionForgotten,
    ToolFailed,
    Unreachable,
    in_words,
    leaf,
    retrieve_error,
)
from chordage.orchestrator.gateways.mcp.offers import ListedTool, fault_of_result
from chordage.orchestrator.gateways.mcp.transports import McpTransport

CLOSING_SECONDS = 8.0  # for an orderly end; a program that does not end by itself is killed within them
EXPLANATION_SECONDS = 0.5
MOST_PAGES = 100  # of a list of tools; one without an end is cut
SESSION_TERMINATED = "Session terminated"  # what the package makes of HTTP 404 once there is a session

T = TypeVar("T")


class SessionObserver(Protocol):
    """Learns what happens to a session, in its event loop."""

    def tools_changed(self) -> None: ...
    def ended(self, session: Session, why: str | None) -> None:
        """Called once: the session takes no more calls. `why` is None for an orderly end."""
        ...


class Session:
    def __init__(self, transport: McpTransport, observer: SessionObserver, *, version: str) -> None:
        self._transport = transport
        self._observer = observer
        self._client_info = Implementation(name="chordage", version=version)
        self._opened = asyncio.Event()
        self._leave = asyncio.Event()
        self._over = asyncio.Event()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        self._calls = 0  # under way
        self._began = time.monotonic()
        self.usable = False
        self.tools: tuple[ListedTool, ...] = ()

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    @property
    def version(self) -> str | None:
        about = self._client.server_info if self._client else None
        return f"{about.name} {about.version}".strip() if about else None

    @property
    def protocol(self) -> str | None:
        return self._client.protocol_version if self._client else None

    async def open(self, within: float) -> None:
        """Connect, and list the tools. Raises Unreachable."""
        self._task = asyncio.create_task(self._live())
        try:
            await asyncio.wait_for(self._opened.wait(), within)
        except TimeoutError:
            self._task.cancel()
            raise Unreachable(await self._explained(f"it did not answer within {within:g} s")) from None
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self.usable:
            raise Unreachable(await self.cause_of_end())

    async def call(
        self, tool: str, arguments: dict[str, Any], *, limit: float, key: str, on_progress: ProgressFnT
    ) -> Any:
        """The tool's result as a value. Raises the failures of errors.py."""
        assert self._client is not None
        meta: Any = {"chordage/idempotency-key": key}
        call = self._client.call_tool(tool, arguments, progress_callback=on_progress, meta=meta)
        result = await self._answered(call, limit)
        if result.is_error:
            raise ToolFailed(text_of(result))
        return value_of(result)

    async def list_again(self, limit: float) -> None:
        assert self._client is not None
        self.tools = await self._answered(_all_tools(self._client), limit)

    def close(self, why: str | None = None) -> None:
        """Take no more calls, and end after those that are under way. `why`: the connection cannot be trusted."""
        if self.usable:
            self.usable = False
            self._observer.ended(self, why)
        if not self._calls:
            self._leave.set()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    async def closed(self) -> None:
        """Close, also with calls under way, and wait for the end."""
        self.close()
        self._leave.set()
        await self._over.wait()

    async def cause_of_end(self, otherwise: str = CLOSED) -> str:
        """As far as it shows within a moment."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), EXPLANATION_SECONDS)
        return await self._explained(in_words(self._fault) or otherwise)

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(self._new_client())
                # The library would search for the server's patterns with `re`, in the one thread of all servers.
                self._client.session.validate_tool_result = self._validate  # type: ignore[method-assign]
                self.tools = await _all_tools(self._client)
                self._began, self.usable = time.monotonic(), True
                self._opened.set()
                listening = asyncio.create_task(self._listen(self._client))
                try:
                    await self._leave.wait()
                finally:
                    listening.cancel()
                    ending = asyncio.get_running_loop().call_later(CLOSING_SECONDS, _cancel_current_task())
            ending.cancel()
        except BaseException as error:  # also a cancellation: this task ends here in any case
            self._fault = error
        finally:
            self.close(in_words(self._fault) or CLOSED)
            self._opened.set()
            self._over.set()

    def _new_client(self) -> Client:
        @asynccontextmanager
        async def streams() -> Any:
            async with self._transport.open(self._on_end) as pair:
                yield pair

        return Client(streams(), message_handler=self._on_message, client_info=self._client_info, cache=None)

    async def _validate(self, name: str, result: CallToolResult) -> None:
        """Structured content must fit the tool's own schema. Raises RuntimeError, as the library does."""
        schema = next((tool.output for tool in self.tools if tool.name == name), None)
        if schema is None or result.is_error:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if (fault := fault_of_result(result.structured_content, schema, name)) is not None:
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {fault}")

    def _on_end(self) -> None:
        """Nothing more will come in."""
        self.close(CLOSED)
        self._leave.set()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._observer.tools_changed()

    async def _listen(self, client: Client) -> None:
        """Newer servers report a change of their tools only to clients that subscribe."""
        try:
            async with client.listen(tools_list_changed=True) as news:
                async for _ in news:
                    self._observer.tools_changed()
            self.close()
        except SubscriptionLost:
            self.close()  # an orderly end: calls will show whether more than the subscription was lost
        except (ListenNotSupportedError, MCPError, TimeoutError):
            return

    async def _answered(self, request: Coroutine[Any, Any, T], limit: float) -> T:
        task = asyncio.create_task(request)
        task.add_done_callback(retrieve_error)
        self._calls += 1
        alone = self._calls == 1
        try:
            await asyncio.wait({task}, timeout=limit)
            if not task.done():
                self.close(f"it did not answer within {limit:g} s")
                raise AnswerTimeout
            return task.result()
        except MCPError as error:
            raise await self._failure(error, alone=alone and self._calls == 1) from error
        except (RuntimeError, ValidationError) as error:
            raise BadAnswer(str(error)) from error
        finally:
            task.cancel()
            self._calls -= 1
            if not self.usable:
                self.close()

    async def _failure(self, error: MCPError, *, alone: bool) -> Exception:
        """`alone`: there was no other call, so an error of the connection is an error of this one."""
        if error.code == INVALID_REQUEST and error.message == SESSION_TERMINATED:
            self.close()
            return SessionForgotten()
        if error.code != CONNECTION_CLOSED:
            return ProtocolError(await self._explained(f"{error.message} ({error.code})"))
        self.close(CLOSED)
        why = await self.cause_of_end(CLOSED if error.message == "Connection closed" else error.message)
        cause = leaf(self._fault)
        if alone and cause is not None and self._transport.was_never_sent(cause):
            return Unreachable(why)
        return ConnectionLost(why)

    async def _explained(self, why: str) -> str:
        explanation = await self._transport.explanation()
        return f"{why}; {explanation}" if explanation else why


def _cancel_current_task() -> Callable[[], object]:
    task = asyncio.current_task()
    assert task is not None
    return task.cancel


async def _all_tools(client: Client) -> tuple[ListedTool, ...]:
    """All pages of the server's list."""
    if client.server_capabilities.tools is None:
        return ()
    tools: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += [_listed(tool) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)


def _listed(tool: Tool) -> ListedTool:
    hints = tool.annotations
    return ListedTool(
        name=tool.name,
        description=tool.description or tool.title or (hints.title if hints else None) or "",
        schema=tool.input_schema,
        output=tool.output_schema,
        read_only=hints.read_only_hint if hints else None,
        idempotent=hints.idempotent_hint if hints else None,
    )


# results, in a form that a model reads


def value_of(result: CallToolResult) -> Any:
    """Text as it is, anything else as JSON; None for an empty result.

    Models read text here. An image, a sound or a file is only described: its bytes would fill the prompt with letters
    that mean nothing to the model.
    """
    content = _content(result.content)
    structured = result.structured_content
    if structured is None or _is_same(content, structured):
        return content
    return structured if content is None else {"content": content, "structured": structured}


def text_of(result: CallToolResult) -> str:
    """The text of an error."""
    value = value_of(result)
    if value is None:
        return "it does not say what went wrong"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(blocks: Sequence[ContentBlock]) -> Any:
    if not blocks:
        return None
    texts = [block.text for block in blocks if isinstance(block, TextContent)]
    return "\n".join(texts) if len(texts) == len(blocks) else [_block(block) for block in blocks]


def _is_same(content: Any, structured: Any) -> bool:
    """Servers repeat structured content as JSON in a text, and wrap what is no object in an object of one key."""
    if not isinstance(content, str):
        return False
    wrapped = structured["result"] if isinstance(structured, dict) and structured.keys() == {"result"} else structured
    if content == wrapped:
        return True
    try:
        return bool(bounds.loads_json(content) in (structured, wrapped))
    except ValueError:
        return False


def _block(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent() | AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, **_size(block.data)}
        case ResourceLink():
            fields = {"uri": block.uri, "name": block.name, "mime_type": block.mime_type, "about": block.description}
            return {"type": "link", **_present(fields)}
        case EmbeddedResource(resource=resource):
            return {"type": "file", **_file(resource)}


def _file(resource: TextResourceContents | BlobResourceContents) -> dict[str, Any]:
    fields = _present({"uri": resource.uri, "mime_type": resource.mime_type})
    if isinstance(resource, TextResourceContents):
        return {**fields, "text": resource.text}
    return {**fields, **_size(resource.blob)}


def _size(base64: str) -> dict[str, Any]:
    return {"bytes": len(base64.rstrip("=")) * 3 // 4, "note": "the bytes are left out"}


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
