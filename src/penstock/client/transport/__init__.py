"""Connections to nodes: HTTP/1.1 on a socket, a pool for each node, and retries."""
