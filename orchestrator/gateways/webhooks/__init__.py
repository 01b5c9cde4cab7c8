"""Webhooks of the room: hooks.toml, decoders, and what is counted."""
