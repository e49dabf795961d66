"""From a claim to a verdict: claims, waiting consumers, streams, scans, dead letters, sessions."""
