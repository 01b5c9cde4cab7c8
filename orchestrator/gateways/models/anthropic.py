"""Anthropic's Messages format: the request."""

from __future__ import annotations

from typing import Any

from chordage.orchestrator.core.model import Prompt, Reply, ToolOffer
from chordage.orchestrator.gateways.models import anthropic_answer, anthropic_cache
from chordage.orchestrator.gateways.models.anthropic_history import container, messages, names_of_tools_used
from chordage.orchestrator.gateways.models.wire import StreamReader, Target, with_params

VERSION = "2023-06-01"
MAX_TOKENS = 8192  # the format insists on a number


class AnthropicWire:
    path = "/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": target.model,
            "max_tokens": MAX_TOKENS,
            "messages": messages(prompt.said, target.provider),
            **container(prompt.said, target.provider),
            **({"system": prompt.system} if prompt.system else {}),
            **({"stream": True} if stream else {}),
        }
        body = _with_tools(_renamed(with_params(body, prompt.params, "anthropic")), prompt)
        return anthropic_cache.marked(body, prompt) if prompt.cache else body

    def whole(self, answer: dict[str, Any], target: Target) -> Reply:
        return anthropic_answer.whole(answer, target)

    def reader(self, target: Target) -> StreamReader:
        return anthropic_answer.Reader(target)


def _with_tools(body: dict[str, Any], prompt: Prompt) -> dict[str, Any]:
    # Tools among the parameters are such as the provider runs itself; they stand beside ours.
    tools = [*(_tool(offer) for offer in prompt.offers), *body.pop("tools", [])]
    if tools:
        return {**body, "tools": tools}
    body.pop("tool_choice", None)
    used = names_of_tools_used(prompt.said)
    if not used:
        return body
    # A history with tool calls is refused unless tools are declared: so they are, and none may be called.
    declared = [ToolOffer(name=name, description="Not offered now.", schema={"type": "object"}) for name in used]
    return {**body, "tools": [_tool(offer) for offer in declared], "tool_choice": {"type": "none"}}


def _tool(offer: ToolOffer) -> dict[str, Any]:
    return {"name": offer.name, "description": offer.description, "input_schema": offer.schema}


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    """The names of the other format, so that one set of parameters serves a model and its fallbacks."""
    if "max_completion_tokens" in body:
        body["max_tokens"] = body.pop("max_completion_tokens")
    if "stop" in body:
        stop = body.pop("stop")
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    match body.get("tool_choice"):
        case "required":
            body["tool_choice"] = {"type": "any"}
        case "auto" | "none" as kind:
            body["tool_choice"] = {"type": kind}
        case str(name):
            body["tool_choice"] = {"type": "tool", "name": name}
    return body
