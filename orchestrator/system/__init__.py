"""What the engine needs of the operating system and of the interpreter: private files, and code that users wrote."""
