"""What a node does by itself: retention, schedules, taking in enqueued messages."""
