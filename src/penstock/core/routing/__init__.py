"""From an exchange and a key to queues: exchanges, bindings and patterns."""
