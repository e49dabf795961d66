"""The memory engine: the contract on plain dicts, for ephemeral queues and the simulation."""
