"""AMQP 0.9.1 without sockets: bytes in, events out; calls in, bytes out. No clock, no broker.

`connection.ServerConnection` is the server's side of one connection; `events` is what it reports and what the owner of
the socket does then; `tables` and `properties` are the values that messages and arguments carry; `methods` makes the
rarer methods, named by pamqp's classes.
"""
