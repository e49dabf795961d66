"""The HTTP front: `server` listens, `connection` makes requests of bytes, `routes` finds who answers, `handlers` do."""
