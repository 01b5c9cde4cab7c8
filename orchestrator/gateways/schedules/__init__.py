"""Scheduled work of a room: tasks, chores and the will as Markdown files, and when they are due."""
