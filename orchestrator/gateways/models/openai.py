"""OpenAI's chat completions, the format that most other providers and local servers speak too: the request."""

from __future__ import annotations

import json
from typing import Any

from chordage.orchestrator.core.model import AssistantSays, Prompt, Reply, Said, ToolAsk, ToolOffer, ToolSays, UserSays
from chordage.orchestrator.gateways.models import openai_answer, openai_output
from chordage.orchestrator.gateways.models.wire import StreamReader, Target, with_params


class OpenAIWire:
    path = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, prompt: Prompt, target: Target, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": target.model, "messages": messages(prompt, target.provider)}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if target.json_schema and prompt.output is not None:
            body |= openai_output.demanded(prompt.output)
        body = with_params(body, prompt.params, "openai")
        # Tools among the parameters are such as the provider runs itself; they stand beside ours.
        tools = [*(_tool(offer) for offer in prompt.offers), *body.pop("tools", [])]
        return _renamed({**body, **({"tools": tools} if tools else {})}, target)

    def whole(self, answer: dict[str, Any], target: Target) -> Reply:
        return openai_answer.whole(answer, target)

    def reader(self, target: Target) -> StreamReader:
        return openai_answer.Reader(target)


def messages(prompt: Prompt, provider: str) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": prompt.system}] if prompt.system else []
    return [*system, *(_message(said, provider) for said in prompt.said)]


def _message(said: Said, provider: str) -> dict[str, Any]:
    match said:
        case UserSays(text=text):
            return {"role": "user", "content": text}
        case ToolSays():
            return {"role": "tool", "tool_call_id": said.ask_id, "content": said.content}
        case AssistantSays():
            return _assistant(said, provider)


def _assistant(said: AssistantSays, provider: str) -> dict[str, Any]:
    if not said.asks:
        return {"role": "assistant", "content": said.text}
    # What a provider hung onto its own calls (signatures of thought) goes back to that provider and to no other.
    hung = said.extra.get("calls", {}) if said.extra.get("provider") == provider else {}
    calls = [{**hung.get(ask.id, {}), **_call(ask)} for ask in said.asks]
    return {"role": "assistant", "content": said.text or None, "tool_calls": calls}


def _call(ask: ToolAsk) -> dict[str, Any]:
    # Arguments that were no JSON go back as an empty object, for many servers parse them again.
    # The result of the call tells the model what was wrong.
    arguments = json.dumps(ask.arguments or {}, ensure_ascii=False)
    return {"id": ask.id, "type": "function", "function": {"name": ask.name, "arguments": arguments}}


def _tool(offer: ToolOffer) -> dict[str, Any]:
    described = {"name": offer.name, "description": offer.description, "parameters": offer.schema}
    return {"type": "function", "function": described}


def _renamed(body: dict[str, Any], target: Target) -> dict[str, Any]:
    """Our names for what the formats name differently: max_tokens, and tool_choice in one word."""
    if target.max_tokens_key != "max_tokens" and "max_tokens" in body:
        body.setdefault(target.max_tokens_key, body.pop("max_tokens"))
    if "tools" not in body:
        body.pop("tool_choice", None)
        body.pop("parallel_tool_calls", None)
    choice = body.get("tool_choice")
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    return body
