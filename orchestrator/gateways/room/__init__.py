"""The room: a folder with agent.toml, agents/*.toml and the Python files with their tools, read and kept up to date."""
