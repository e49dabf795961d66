"""Penstock's AMQP port, with the very client that RabbitMQ is measured with."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers_lib.peer import ROOT, Client
from bench.peers_lib.penstock_http import Penstock
from bench.peers_lib.processes import Process, free_port, wait_for_port
from bench.peers_lib.rabbitmq import RabbitMQ, RabbitMQClient


class PenstockAmqp(Penstock):
    name = "penstock-amqp"
    library = RabbitMQ.library
    confirm = (
        "The AMQP port of `penstock serve` on an SQLite file and its synced log: a confirm is sent after the "
        "commit that holds the message was forced to disk. Acknowledgements are committed too, but AMQP confirms none."
    )

    def start(self, folder: Path) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", "--amqp-port", str(self.port)]
        command += ["--store", str(folder / "penstock.db"), "--no-mqtt", "--set", "log.level=warning"]
        self.processes.append(Process(command, folder / "penstock.log", {"PYTHONPATH": str(ROOT / "src")}, folder))
        wait_for_port(self.port, self.processes[-1])

    @staticmethod
    def client(port: int) -> Client:
        return RabbitMQClient(port, {})
