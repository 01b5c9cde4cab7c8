"""What turns a delivery into words: the one for JSON, and functions of one's own, by entry point or import path.

One of one's own is handed a Delivery whose seal is right, and returns a dict with `text` and, if it likes, `thread` and
`meta`; or None for a delivery that is no message. ValueError refuses the delivery, with its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chordage.orchestrator.core import webhooks
from chordage.orchestrator.core.errors import ChordageError, InvalidMessage
from chordage.orchestrator.core.webhooks import WEBHOOK, Binding, Said
from chordage.orchestrator.system import user_code
from chordage.orchestrator.system.user_code import JobRaised, TookTooLong, within

ENTRY_POINTS = "chordage.hooks"
SECONDS = 5.0  # somebody waits at the other end
MAY_SAY = {"text", "thread", "meta"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """What came in, once its signature was right."""

    binding: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    config: Mapping[str, Any] = field(default_factory=dict)  # of its binding


Decoder = Callable[[Delivery], Mapping[str, Any] | None]


class DecoderFailed(ChordageError):
    """The function raised, did not come back, or returned what is no message."""


def find(name: str) -> Decoder:
    """Raises RoomError."""
    found: Decoder = user_code.load_function(name, ENTRY_POINTS, what="hook decoder")
    return found


def decode(binding: Binding, headers: Mapping[str, str], body: bytes) -> Said | None:
    """Raises InvalidMessage, and DecoderFailed."""
    if binding.plugin == WEBHOOK:
        return _from_json(binding, headers, body)
    delivery = Delivery(
        binding=binding.name, path=binding.path, headers=headers, body=body, config=binding.options
    )  # fmt: skip
    return _from_code(binding.plugin, delivery)


def _from_json(binding: Binding, headers: Mapping[str, str], body: bytes) -> Said:
    shape, payload = binding.shape, webhooks.read(body)
    return Said(
        text=webhooks.text_of(shape, payload),
        thread=webhooks.thread_of(shape, payload),
        meta=webhooks.meta_of(shape, payload, headers),
    )


def _from_code(name: str, delivery: Delivery) -> Said | None:
    decoder = find(name)
    try:
        found = within(SECONDS, lambda: decoder(delivery), f"hook decoder {name}")
    except JobRaised as error:
        if isinstance(error.error, ValueError):
            raise InvalidMessage(str(error.error), field="body") from error.error
        raise DecoderFailed(f"hook decoder {name!r} raised {type(error.error).__name__}: {error.error}") from error
    except TookTooLong as error:
        raise DecoderFailed(f"hook decoder {name!r} did not answer within {SECONDS:g} s") from error
    return None if found is None else _said(name, found)


def _said(name: str, found: Any) -> Said:
    if not isinstance(found, Mapping) or not set(found) <= MAY_SAY or not isinstance(found.get("text"), str):
        may = ", ".join(sorted(MAY_SAY))
        raise DecoderFailed(f"hook decoder {name!r} must return None, or a dict with text and at most {may}")
    thread, meta = found.get("thread"), found.get("meta") or {}
    if not isinstance(thread, str | None) or not isinstance(meta, Mapping):
        raise DecoderFailed(f"hook decoder {name!r}: thread must be a text, and meta a dict")
    return Said(text=found["text"], thread=thread, meta=meta)
