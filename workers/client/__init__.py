"""For programs that send messages and drive turns: over HTTP, over the database of the fleet, or over Celery.

`chordage.Client` and `chordage.AsyncClient` need nothing but the address of a server. Nothing is imported here: that
they stay quick to import depends on it.
"""
