"""The client: Penstock from another process, over HTTP. Start with `penstock.AsyncClient` or `penstock.Client`.

From the top: `client.py` (the API), `producer.py`, `consumer.py` and `stream.py` (what runs on it), `channel.py` (what
is sent again), `pool.py` (nodes) and `connection.py` (bytes). It may know the node's plain results, not its insides.
"""
