"""The HTTP API without sockets: the shapes that client and server exchange."""
