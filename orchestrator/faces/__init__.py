"""Protocols of clients that are not ours. Each face is a pure function from the moments of a turn to wire events."""
