"""Messages that the consumer of a stepped run puts into its history: checked as they come, told as they were given.

An assistant message may ask for tools. Its results stand directly behind it, given by the consumer or worked out by
the engine: the last one's open asks are carried out when the run moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.model import AssistantSays, Reply, Said, ToolAsk, ToolSays, UserSays

Given = Mapping[str, Any]
T = TypeVar("T")
Answering = Callable[[ToolAsk, T | None], ToolSays]


def normal(
    messages: Sequence[Given], before: Sequence[Given], reply: Reply | None, reply_id: str | None
) -> list[dict[str, Any]]:
    """`messages` as they are kept, behind `before`. The first that cannot stand there is raised."""
    if not messages:
        raise InvalidMessage("there is no message: give at least one", field="messages")
    kept: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        one = _normal(message, f"messages.{place}", reply, reply_id)
        _check_order(one, [*before, *kept], f"messages.{place}")
        kept.append(one)
    return kept


def _normal(message: Given, at: str, reply: Reply | None, reply_id: str | None) -> dict[str, Any]:
    match message:
        case {"role": "user", "text": str(text), **rest} if not rest and text.strip():
            return {"role": "user", "text": text}
        case {"role": "assistant", "reply": wanted, **rest} if not rest:
            return _linked(wanted, at, reply, reply_id)
        case {"role": "assistant", "text": str(text), **rest} if not rest.keys() - {"asks"}:
            return _own(text, rest.get("asks") or [], at, reply)
        case {"role": "tool", "ask_id": str(ask_id), "content": str(content), **rest} if not rest.keys() - {"is_error"}:
            return {"role": "tool", "ask_id": ask_id, "content": content, "is_error": bool(rest.get("is_error"))}
        case _:
            told = (
                'give {"role": "user", "text"}, {"role": "assistant", "text", "asks"?}, {"role": "assistant", "reply"} '
                'or {"role": "tool", "ask_id", "content", "is_error"?}'
            )
            raise InvalidMessage(f"{told}; got {dict(message)!r:.120}", field=at)


def _linked(wanted: object, at: str, reply: Reply | None, reply_id: str | None) -> dict[str, Any]:
    if reply is None or wanted != reply_id:
        held = f"held is {reply_id}" if reply_id else "no reply is held"
        raise InvalidMessage(f"{wanted!r} is not the reply that is held ({held})", field=f"{at}.reply")
    return _assistant(reply.text, reply.asks, extra=reply.extra, linked=True)


def _own(text: str, asks: Sequence[Given], at: str, reply: Reply | None) -> dict[str, Any]:
    """One whose content equals the reply that is held is that reply."""
    named = tuple(_ask(ask, f"{at}.asks.{place}") for place, ask in enumerate(asks))
    if not text.strip() and not named:
        raise InvalidMessage("an assistant message says something or asks for a tool", field=at)
    if len({ask.id for ask in named}) < len(named):
        raise InvalidMessage("two asks have the same id: give each one of its own", field=f"{at}.asks")
    if reply is not None and (text, _wanted(named)) == (reply.text, _wanted(reply.asks)):
        return _assistant(text, reply.asks, extra=reply.extra, linked=True)
    return _assistant(text, named, extra={}, linked=False)


def _wanted(asks: Sequence[ToolAsk]) -> list[tuple[Any, ...]]:
    return [(ask.id, ask.name, ask.arguments) for ask in asks]


def _assistant(text: str, asks: Sequence[ToolAsk], *, extra: dict[str, Any], linked: bool) -> dict[str, Any]:
    return {
        "role": "assistant", "text": text, "asks": [asdict(ask) for ask in asks], "extra": extra, "linked": linked,
    }  # fmt: skip


def _ask(given: Given, at: str) -> ToolAsk:
    match given:
        case {"id": str(ask_id), "name": str(name), "arguments": dict(arguments), **rest} if not rest and ask_id:
            return ToolAsk(id=ask_id[:200], name=name, arguments=arguments)
        case _:
            raise InvalidMessage(f'give {{"id", "name", "arguments"}}; got {dict(given)!r:.120}', field=at)


def _check_order(one: Given, before: Sequence[Given], at: str) -> None:
    """No result without its ask, no ask that could never have one."""
    if one["role"] == "tool":
        if one["ask_id"] not in {ask.id for ask in open_asks(before)}:
            told = f"{one['ask_id']!r} is no open ask of the assistant message before it: a result answers one, once"
            raise InvalidMessage(told, field=f"{at}.ask_id")
    elif one["role"] == "assistant" and one["linked"] and any(said.get("linked") for said in before):
        raise InvalidMessage("the reply that is held is in the history already", field=at)


def tail(messages: Sequence[Given]) -> Given | None:
    """The assistant message at the end, with nothing but results behind it."""
    for one in reversed(messages):
        if one["role"] == "assistant":
            return one
        if one["role"] != "tool":
            return None
    return None


def asks_of(message: Given) -> tuple[ToolAsk, ...]:
    return tuple(ToolAsk(**ask) for ask in message["asks"])


def open_asks(messages: Sequence[Given]) -> tuple[ToolAsk, ...]:
    """What the last assistant message asks for and nobody has answered."""
    last = tail(messages)
    if last is None:
        return ()
    answered = {one["ask_id"] for one in messages[_place(messages, last) + 1 :]}
    return tuple(ask for ask in asks_of(last) if ask.id not in answered)


def _place(messages: Sequence[Given], wanted: Given) -> int:
    return next(place for place, one in enumerate(messages) if one is wanted)


def left_open(messages: Sequence[Given]) -> list[str]:
    """Asks that stand before the end without a result: nobody can answer them there any more."""
    last = tail(messages)
    return [
        ask.id
        for place, one in enumerate(messages)
        if one["role"] == "assistant" and one is not last
        for ask in asks_of(one)
        if ask.id not in _supplied(messages, place)
    ]


def _supplied(messages: Sequence[Given], place: int) -> dict[str, Given]:
    """The results directly behind the message at this place."""
    found: dict[str, Given] = {}
    for one in messages[place + 1 :]:
        if one["role"] != "tool":
            break
        found[one["ask_id"]] = one
    return found


def said(messages: Sequence[Given], by_place: Mapping[int, T], answer: Answering[T]) -> Iterator[Said]:
    """As the model is to see them. `by_place`: the calls that were made for the last of them."""
    last = tail(messages)
    for place, one in enumerate(messages):
        match one["role"]:
            case "user":
                yield UserSays(text=one["text"])
            case "assistant":
                yield AssistantSays(text=one["text"], asks=asks_of(one), extra=one["extra"])
                supplied, calls = _supplied(messages, place), by_place if one is last else {}
                for number, ask in enumerate(asks_of(one)):
                    result = supplied.get(ask.id)
                    yield answer(ask, calls.get(number)) if result is None else _told(ask, result)


def _told(ask: ToolAsk, result: Given) -> ToolSays:
    return ToolSays(ask_id=ask.id, name=ask.name, content=result["content"], is_error=result["is_error"])
