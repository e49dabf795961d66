"""The commit loop: what is pending, and the group commit that makes it durable."""
