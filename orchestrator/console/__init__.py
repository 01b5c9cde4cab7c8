"""The console: pages that a person reads and acts on, made of the same views as the HTTP API."""
