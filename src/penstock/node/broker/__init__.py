"""The broker of this process: the operations of `api/`, checked here and done by the modules of `node/`.

Arguments are checked once, with errors that name the value and the limit. The parts are named as those of `api/` and
of the client (`client/operations/`).
"""

from penstock.node.broker.local import LocalBroker
from penstock.node.broker.messages import LocalTransaction

__all__ = ["LocalBroker", "LocalTransaction"]
