"""MQTT 3.1.1 and 5 without sockets: bytes in, events out; bytes out.

`connection.ServerConnection` is the engine of one client's connection and the only thing that a front needs besides
`packets` (what events hold), `reasons` (the codes), `topics` (names, filters, matching) and `websocket` (a filter that
carries the same bytes in WebSocket frames). `v3` and `v5` are the codecs behind it. Nothing here knows asyncio,
sockets, sessions or the broker, and time comes as an argument.
"""
