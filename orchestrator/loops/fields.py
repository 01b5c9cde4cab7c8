"""Values as they come in over HTTP, checked for what every database can keep."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field

# As JSON writes it; an escaped backslash before it makes it six harmless characters.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("lies outside the years 1 to 9999") from error


def _storable(value: Any) -> Any:
    """JSON as the standard has it, and as every database can keep it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds half of a surrogate pair, which is no Unicode text") from error
    except ValueError as error:
        raise ValueError("holds NaN or an infinite number, which JSON does not have") from error
    if _NUL.search(text):
        raise ValueError("holds a NUL character: remove it")
    return value


Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]
JsonValue = Annotated[Any, AfterValidator(_storable)]
Words = Annotated[str, AfterValidator(_storable)]
