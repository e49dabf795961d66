"""Publishing while the store is away: a durable spool on the node's own disk, replayed exactly once."""
