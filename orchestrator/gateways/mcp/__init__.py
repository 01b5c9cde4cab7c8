"""Tools of MCP servers: the servers of a room, the connections to them, and their tools in the shape of ours.

Only `session` and `transports` import the package `mcp`, and they are imported when a server is first used: a room
without servers needs neither the package nor the second that its import takes.
"""
