"""From a publish to appended messages: checks, routing, lanes, transactions."""
