"""Time zones by name."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def zone_from(name: object) -> ZoneInfo:
    """Raises ValueError with what to do."""
    try:
        return ZoneInfo(name if isinstance(name, str) else "")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {name!r}: write it like Europe/Berlin, or UTC") from error
