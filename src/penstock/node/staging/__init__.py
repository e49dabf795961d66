"""Staged transactions: chunks that nobody sees until one commit publishes them."""
