"""The MQTT front: 3.1.1 and 5, over TCP and WebSocket, on the broker. `server.MqttServer` is what to start.

A session's messages are a queue of the broker's, its subscriptions are bindings of that queue to the exchange `mqtt`,
and what must outlive a restart beside them (who subscribed to what, wills, packet ids under way, retained messages) is
in two tables (`table.py`). Packets are `penstock.wire.mqtt`'s; this package owns sockets and the mapping.
"""
