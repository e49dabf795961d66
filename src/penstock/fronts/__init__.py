"""From sockets to the broker: one package a protocol."""
