"""AMQP 0.9.1 for clients of RabbitMQ: sockets and channels on one side, the broker's methods on the other.

`server.py` listens; `connection.py` is one client; `channel.py` does what one channel asks for, in order, with
`declaring.py`, `publishing.py`, `transactions.py`, `consuming.py`, `settling.py` and `streams.py`; `mapping.py` and
`arguments.py` say what is what on both sides. The protocol's bytes are `penstock.wire.amqp091`'s.
"""
