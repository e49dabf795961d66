"""Types of a server's settings: a number with its unit and limits. Sections of the configuration are made of these."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECONDS_MAX: Final = 24 * 3600.0

Bytes = Annotated[int, Meta(ge=KIB, le=4096 * MIB)]
BytesOrDefault = Annotated[int, Meta(ge=0, le=4096 * MIB)]
"""0 stands for what other settings need."""
Count = Annotated[int, Meta(ge=1, le=100_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=0.1, le=SECONDS_MAX)]
