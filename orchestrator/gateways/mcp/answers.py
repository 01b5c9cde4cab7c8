"""What a server answered to a call, as something a model can read: text as it is, anything else as JSON.

Models read text here. Of an image, a sound or a file only what it is goes on: its bytes would fill the prompt with
letters that mean nothing to the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from chordage.orchestrator.core import bounds


def value_of(result: CallToolResult) -> Any:
    """None for an answer that holds nothing."""
    shown = _shown(result.content)
    structured = result.structured_content
    if structured is None or _says_the_same(shown, structured):
        return shown
    return structured if shown is None else {"content": shown, "structured": structured}


def text_of(result: CallToolResult) -> str:
    """Of an error."""
    value = value_of(result)
    if value is None:
        return "it does not say what went wrong"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(blocks: Sequence[ContentBlock]) -> Any:
    if not blocks:
        return None
    if all(isinstance(block, TextContent) for block in blocks):
        return "\n".join(block.text for block in blocks if isinstance(block, TextContent))
    return [_block(block) for block in blocks]


def _says_the_same(shown: Any, structured: Any) -> bool:
    """Servers repeat what is structured as JSON in a text; what is no object they wrap in one of one key."""
    if not isinstance(shown, str):
        return False
    wrapped = structured["result"] if isinstance(structured, dict) and structured.keys() == {"result"} else structured
    if shown == wrapped:
        return True
    try:
        return bool(bounds.loads_json(shown) in (structured, wrapped))
    except ValueError:
        return False


def _block(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextContent():
            return {"type": "text", "text": block.text}
        case ImageContent() | AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, **_size(block.data)}
        case ResourceLink():
            named = {"uri": block.uri, "name": block.name, "mime_type": block.mime_type, "about": block.description}
            return {"type": "link", **_given(named)}
        case EmbeddedResource(resource=resource):
            return {"type": "file", **_file(resource)}


def _file(resource: TextResourceContents | BlobResourceContents) -> dict[str, Any]:
    named = _given({"uri": resource.uri, "mime_type": resource.mime_type})
    if isinstance(resource, TextResourceContents):
        return {**named, "text": resource.text}
    return {**named, **_size(resource.blob)}


def _size(base64: str) -> dict[str, Any]:
    return {"bytes": len(base64.rstrip("=")) * 3 // 4, "note": "the bytes are left out"}


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
