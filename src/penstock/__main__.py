"""`python -m penstock` is `python -m penstock.cli`."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("penstock.cli", run_name="__main__", alter_sys=True)
