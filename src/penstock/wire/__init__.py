"""Protocols without sockets: the shapes and bytes that clients and fronts exchange."""
