"""Where a client looks for a server unless it is told."""

from __future__ import annotations

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:7333"
