"""The broker's face: every operation a user or a front can ask for, typed and checked, on one namespace.

Arguments are checked here, once, with errors that name the value and the limit; the modules of `node/` do the work.
Each method returns when what it did is durable. `penstock.open` gives you a `Broker`. The parts have the names of the
client's (`client/`), which offers the same over HTTP.
"""

from penstock.node.broker.local import Broker, broker_of_session
from penstock.node.broker.messages import WAIT_SECONDS_MAX
from penstock.node.broker.transaction import LeaseLike, Transaction

__all__ = ["WAIT_SECONDS_MAX", "Broker", "LeaseLike", "Transaction", "broker_of_session"]
