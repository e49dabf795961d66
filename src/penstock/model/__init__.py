"""Plain data that every layer shares: messages, options, limits, names, verdicts. Knows no lane, store or socket.

Errors are in `errors.py`, stored rows in `rows.py`.
"""

from penstock.model.checks import check_integer, check_text
from penstock.model.limits import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    ID_CHARACTERS_MAX,
    INTEGER_MAX,
    LOST_TURNS_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
)
from penstock.model.message import Headers, Message, check_headers, check_message
from penstock.model.names import (
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    EVENTS_PATTERN,
    EVENTS_QUEUE,
    check_name,
    is_events_queue,
    suggestion,
)
from penstock.model.options import (
    Binding,
    ExchangeConfig,
    ExchangeKind,
    GroupConfig,
    QueueConfig,
    dead_letter_target,
    make_config,
)

__all__ = [
    "BATCH_BYTES_DEFAULT",
    "BATCH_BYTES_MAX",
    "BATCH_MESSAGES_MAX",
    "DEFAULT_GROUP",
    "DEFAULT_NAMESPACE",
    "EVENTS_PATTERN",
    "EVENTS_QUEUE",
    "ID_CHARACTERS_MAX",
    "INTEGER_MAX",
    "LOST_TURNS_MAX",
    "NAME_CHARACTERS_MAX",
    "PARTITION_CHARACTERS_MAX",
    "PAYLOAD_BYTES_DEFAULT",
    "PAYLOAD_BYTES_MAX",
    "SPAN_MS_MAX",
    "TIME_MS_MAX",
    "Binding",
    "ExchangeConfig",
    "ExchangeKind",
    "GroupConfig",
    "Headers",
    "Message",
    "QueueConfig",
    "check_headers",
    "check_integer",
    "check_message",
    "check_name",
    "check_text",
    "dead_letter_target",
    "is_events_queue",
    "make_config",
    "suggestion",
]
