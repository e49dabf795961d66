"""What a node tells of itself: delivery events, history, traces, counters, stats, readiness."""
