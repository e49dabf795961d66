"""The state machine: lanes, groups, leases, waiting, routing, filters. No I/O, no clock, no randomness."""
