"""The commands that talk to a running server, one module each."""
