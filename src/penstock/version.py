"""The version, in the one place that the package, its build and `penstock version` read it from."""

from __future__ import annotations

VERSION = "0.2.0"
