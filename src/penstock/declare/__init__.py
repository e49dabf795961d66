"""Declarations in a file: what it asks for, how that differs from what there is, and doing it on a broker or server."""
