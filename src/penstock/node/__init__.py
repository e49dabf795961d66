"""One running broker: the commit loop, what it keeps in memory, its timers, and the broker's API."""
