"""Logging: one line an event, with the ids that tie it to a turn; JSON where a machine reads it.

What strangers wrote cannot act on the terminal that shows a log, nor begin a line of its own. JSON escapes it.

Some addresses carry a secret: the links that log a person in or lead to one question, tickets of streams, and whatever
key a client puts there. Others carry content: what was searched for, the name of a thread. The log of requests has
addresses without these secrets, and of a query only the names of its parameters.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any, TextIO

import structlog
from structlog.types import EventDict, ExcInfo, Processor, WrappedLogger

from chordage.orchestrator.core.inert import inert, inert_line

SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]
QUIET = (
    "httpx", "httpcore", "httpx2", "httpcore2", "mcp", "kombu", "amqp", "alembic", "celery.worker.strategy",
    "celery.app.trace", "celery.beat", "celery.worker.request",  # the latter two tell each tick
)  # fmt: skip
ACCESS = "uvicorn.access"
_SECRET = re.compile(
    r"""(/ask/|[?&](?:link|ticket|[\w-]*key|[\w-]*token)=|\bck_[0-9A-Za-z]+_)[^\s&"'?]+""", re.IGNORECASE
)


_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")  # of a parameter


def configure(level: str, style: str) -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(style))
    handler.addFilter(redact)
    logging.getLogger(ACCESS).addFilter(redact)  # which may have a handler of uvicorn's own
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in QUIET if level.upper() != "DEBUG" else ():
        logging.getLogger(chatty).setLevel(logging.WARNING)


def redact(record: logging.LogRecord) -> bool:
    """Takes the secrets of addresses out of a line, and the values of its query out of that of a request. An event of
    structlog is a dict here.
    """
    record.msg = _redacted(record.msg)
    record.args = _redacted(record.args)
    if record.name == ACCESS and isinstance(record.args, tuple):
        record.args = tuple(_without_values(part) if isinstance(part, str) else part for part in record.args)
    return True


def _without_values(address: str) -> str:
    """`/runs?q=secret&limit=2` is `/runs?q=…&limit=…`. What is no name of a parameter may be content too."""
    path, mark, query = address.partition("?")
    pairs = (part.partition("=") for part in query.split("&"))
    return (
        path
        + mark
        + "&".join(f"{name}=…" if _NAME.fullmatch(name) and is_given else "…" for name, is_given, _ in pairs if mark)
    )


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return _SECRET.sub(r"\1…", value)
        case tuple():
            return tuple(_redacted(part) for part in value)
        case dict():
            return {name: _redacted(part) for name, part in value.items()}
        case _:
            return value


def _formatter(style: str) -> logging.Formatter:
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [_in_one_line, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _in_one_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Also what is no text is written as one: its repr may hold anything."""
    return {name: value if name == "exc_info" else _plain(value) for name, value in event.items()}


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else inert_line(str(value))


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Indented, so that no line of it looks like one of the log."""
    lines = inert("".join(traceback.format_exception(*exc_info))).splitlines()
    out.write("".join(f"\n  {line}" for line in lines))
