"""The client: Penstock from another process, over HTTP. Start with `penstock.AsyncClient` or `penstock.Client`.

From the top: `client.py` (the API), `producer.py`, `consumer.py` and `stream.py` (what runs on it),
`client/transport/channel.py` (what is sent again), `client/transport/pool.py` (nodes) and
`client/transport/connection.py` (bytes). It may know the node's plain results, not its insides.
"""
