"""Channels: where messages are fetched and replies are taken to, one binding of channels.toml each."""
