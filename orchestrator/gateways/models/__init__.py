"""Models behind one port: providers over HTTP in two wire formats, and scripted ones that need no network."""
