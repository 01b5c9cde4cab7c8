"""The room's standing work as files: tasks, chores and the will, read and written."""
