"""The broker's operations as requests and answers."""
