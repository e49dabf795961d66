"""What a caller sees, wherever the broker runs: operations, arguments and results."""
