"""Limits of what a caller may ask for. Each is tested at its value and one past it."""

from __future__ import annotations

from typing import Final

NAME_CHARACTERS_MAX: Final = 255
PARTITION_CHARACTERS_MAX: Final = 1_024
LOST_TURNS_MAX: Final = 16
"""Reads of a stream whose answers were lost, as the next read names them."""
ID_CHARACTERS_MAX: Final = 255
DESCRIPTION_CHARACTERS_MAX: Final = 1_024
PRIORITY_MAX: Final = 255
HEADERS_MAX: Final = 256
HEADERS_DEPTH_MAX: Final = 8
HEADERS_BYTES_MAX: Final = 64 * 1024
PAYLOAD_BYTES_MAX: Final = 512 * 1024 * 1024
PAYLOAD_BYTES_DEFAULT: Final = 16 * 1024 * 1024
"""What a server takes unless its `limits.message_bytes` says otherwise."""
BATCH_MESSAGES_MAX: Final = 100_000
BATCH_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
BATCH_BYTES_DEFAULT: Final = 64 * 1024 * 1024
"""The same for `limits.batch_bytes`."""
SPAN_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
TIME_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of year 9999
INTEGER_MAX: Final = 2**63 - 1
LANES_MAX: Final = 1_024
ATTEMPTS_MAX: Final = 65_535
SESSION_SECONDS_MIN: Final = 1.0
SESSION_SECONDS_MAX: Final = 3_600.0
