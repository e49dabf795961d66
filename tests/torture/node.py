"""`penstock serve` on a clock that can be set: its wall clock is as many seconds wrong as a file says.

It dies with the process that started it, however that ends.

python tests/torture/node.py CLOCK-FILE serve --store …
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import time
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1

clock = Path(sys.argv[1])
_time, _time_ns = time.time, time.time_ns


def wrong_by() -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(clock.read_text())
    return 0.0


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    time.time = lambda: _time() + wrong_by()
    time.time_ns = lambda: _time_ns() + int(wrong_by() * 1e9)
    from penstock.cli.main import main

    sys.argv[1:] = sys.argv[2:]
    main()
