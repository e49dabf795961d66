"""The peers there are, by name."""

from __future__ import annotations

from typing import Final

from bench.peers_lib.mqtt import Mosquitto, PenstockMqtt
from bench.peers_lib.nats_jetstream import Nats, NatsDefault
from bench.peers_lib.peer import Peer
from bench.peers_lib.penstock_amqp import PenstockAmqp
from bench.peers_lib.penstock_http import Penstock, PenstockJson, PenstockPostgres
from bench.peers_lib.postgres import Postgres, PostgresInTransaction
from bench.peers_lib.rabbitmq import RabbitMQClassic, RabbitMQQuorum
from bench.peers_lib.redis_streams import Redis

_ALL: Final[tuple[type[Peer], ...]] = (
    Penstock,
    PenstockJson,
    PenstockPostgres,
    PenstockAmqp,
    RabbitMQQuorum,
    RabbitMQClassic,
    Redis,
    Nats,
    NatsDefault,
    Postgres,
    PostgresInTransaction,
    PenstockMqtt,
    Mosquitto,
)
PEERS: Final = {peer.name: peer for peer in _ALL}
ONLY_WHEN_NAMED: Final = {"nats-default"}
