"""Messages that the consumer of a stepped run puts into its history: checked, stored, and shown to the model.

An assistant message may ask for tools. Its results follow it directly, from the consumer or from the engine, which
carries out the open asks of the last assistant message when the run moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import takewhile
from typing import Any, TypeVar

from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.model import AssistantSays, Reply, Said, ToolAsk, ToolSays, UserSays

ClientMessage = Mapping[str, Any]
T = TypeVar("T")
ResultOf = Callable[[ToolAsk, T | None], ToolSays]


def normal(
    messages: Sequence[ClientMessage], before: Sequence[ClientMessage], reply: Reply | None, reply_id: str | None
) -> list[dict[str, Any]]:
    """`messages` as they are stored, behind `before`. Raises InvalidMessage for the first that cannot follow."""
    if not messages:
        raise InvalidMessage("there is no message: give at least one", field="messages")
    stored: list[dict[str, Any]] = []
    for place, raw in enumerate(messages):
        message = _normal(raw, f"messages.{place}", reply, reply_id)
        _check_order(message, [*before, *stored], f"messages.{place}")
        stored.append(message)
    return stored


def _normal(message: ClientMessage, at: str, reply: Reply | None, reply_id: str | None) -> dict[str, Any]:
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
            forms = (
                'give {"role": "user", "text"}, {"role": "assistant", "text", "asks"?}, {"role": "assistant", "reply"} '
                'or {"role": "tool", "ask_id", "content", "is_error"?}'
            )
            raise InvalidMessage(f"{forms}; got {dict(message)!r:.120}", field=at)


def _linked(wanted: object, at: str, reply: Reply | None, reply_id: str | None) -> dict[str, Any]:
    if reply is None or wanted != reply_id:
        held = f"held is {reply_id}" if reply_id else "no reply is held"
        raise InvalidMessage(f"{wanted!r} is not the reply that is held ({held})", field=f"{at}.reply")
    return _assistant(reply.text, reply.asks, extra=reply.extra, linked=True)


def _own(text: str, raw_asks: Sequence[ClientMessage], at: str, reply: Reply | None) -> dict[str, Any]:
    """A message whose content equals the held reply is that reply."""
    asks = tuple(_ask(ask, f"{at}.asks.{place}") for place, ask in enumerate(raw_asks))
    if not text.strip() and not asks:
        raise InvalidMessage("an assistant message says something or asks for a tool", field=at)
    if len({ask.id for ask in asks}) < len(asks):
        raise InvalidMessage("two asks have the same id: give each one of its own", field=f"{at}.asks")
    if reply is not None and text == reply.text and asks == tuple(replace(ask, raw="") for ask in reply.asks):
        return _assistant(text, reply.asks, extra=reply.extra, linked=True)
    return _assistant(text, asks, extra={}, linked=False)


def _assistant(text: str, asks: Sequence[ToolAsk], *, extra: dict[str, Any], linked: bool) -> dict[str, Any]:
    stored_asks = [asdict(ask) for ask in asks]
    return {"role": "assistant", "text": text, "asks": stored_asks, "extra": extra, "linked": linked}


def _ask(raw: ClientMessage, at: str) -> ToolAsk:
    match raw:
        case {"id": str(ask_id), "name": str(name), "arguments": dict(arguments), **rest} if not rest and ask_id:
            return ToolAsk(id=ask_id[:200], name=name, arguments=arguments)
        case _:
            raise InvalidMessage(f'give {{"id", "name", "arguments"}}; got {dict(raw)!r:.120}', field=at)


def _check_order(message: ClientMessage, before: Sequence[ClientMessage], at: str) -> None:
    """Each result follows its ask; the held reply is there once."""
    if message["role"] == "tool":
        if message["ask_id"] not in {ask.id for ask in open_asks(before)}:
            ask_id = message["ask_id"]
            problem = f"{ask_id!r} is no open ask of the assistant message before it: a result answers one, once"
            raise InvalidMessage(problem, field=f"{at}.ask_id")
    elif message["role"] == "assistant" and message["linked"] and any(earlier.get("linked") for earlier in before):
        raise InvalidMessage("the reply that is held is in the history already", field=at)


def asks_of(message: ClientMessage) -> tuple[ToolAsk, ...]:
    return tuple(ToolAsk(**ask) for ask in message["asks"])


def tail(messages: Sequence[ClientMessage]) -> ClientMessage | None:
    """The assistant message at the end, if only results follow it."""
    place = _tail_place(messages)
    return None if place is None else messages[place]


def open_asks(messages: Sequence[ClientMessage]) -> tuple[ToolAsk, ...]:
    """The asks of the last assistant message that have no result yet."""
    place = _tail_place(messages)
    if place is None:
        return ()
    results = _results(messages, place)
    return tuple(ask for ask in asks_of(messages[place]) if ask.id not in results)


def left_open(messages: Sequence[ClientMessage]) -> list[str]:
    """Asks before the last assistant message without a result: they can no longer get one."""
    last = _tail_place(messages)
    return [
        ask.id
        for place, message in enumerate(messages)
        if message["role"] == "assistant" and place != last
        for ask in asks_of(message)
        if ask.id not in _results(messages, place)
    ]


def said(messages: Sequence[ClientMessage], by_place: Mapping[int, T], result: ResultOf[T]) -> Iterator[Said]:
    """As the model is to see them. `by_place`: the calls that the engine made for the last assistant message."""
    last = _tail_place(messages)
    for place, message in enumerate(messages):
        if message["role"] == "user":
            yield UserSays(text=message["text"])
        elif message["role"] == "assistant":
            asks = asks_of(message)
            yield AssistantSays(text=message["text"], asks=asks, extra=message["extra"])
            supplied, calls = _results(messages, place), by_place if place == last else {}
            for number, ask in enumerate(asks):
                if (answer := supplied.get(ask.id)) is not None:
                    yield ToolSays(ask_id=ask.id, name=ask.name, content=answer["content"], is_error=answer["is_error"])
                else:
                    yield result(ask, calls.get(number))


def _tail_place(messages: Sequence[ClientMessage]) -> int | None:
    for place in reversed(range(len(messages))):
        match messages[place]["role"]:
            case "assistant":
                return place
            case "user":
                return None
    return None


def _results(messages: Sequence[ClientMessage], place: int) -> dict[str, ClientMessage]:
    """The results directly behind the message at this place, by the id of their ask."""
    behind = takewhile(lambda message: message["role"] == "tool", messages[place + 1 :])
    return {message["ask_id"]: message for message in behind}
