"""Engines that keep what the node commits: one contract, one conformance suite."""
