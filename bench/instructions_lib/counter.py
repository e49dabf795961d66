"""Runs a Python module and counts the bytecode instructions that it executes, by function, and its calls of C code.

    python counter.py FOLDER [--at-start] MODULE ARGUMENT …

SIGUSR1 begins to count and SIGUSR2 ends it; then the counts are in FOLDER, as `counts.json`. `--at-start` counts from
the module's first line on. The figure depends on what the program does and on the minor version of Python, not on the
machine. All threads count. Knows nothing of what it runs; `meters.py` starts it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

opcodes: Counter[CodeType] = Counter()
c_calls: Counter[CodeType] = Counter()


def entered(frame: FrameType, event: str, arg: Any) -> Any:
    frame.f_trace_opcodes = True
    frame.f_trace_lines = False
    return executed


def executed(frame: FrameType, event: str, arg: Any) -> Any:
    if event == "opcode":
        opcodes[frame.f_code] += 1
    return executed


def called(frame: FrameType, event: str, arg: Any) -> None:
    if event == "c_call":
        c_calls[frame.f_code] += 1


def begin(folder: Path) -> None:
    opcodes.clear()  # threads count from their first step on: nobody can begin that for them later
    c_calls.clear()
    (folder / "counting").touch()
    sys.setprofile(called)
    sys.settrace(entered)


def end(folder: Path) -> None:
    sys.settrace(None)
    sys.setprofile(None)
    functions: Counter[str] = Counter()
    for code, count in opcodes.copy().items():
        functions[f"{code.co_filename}:{code.co_qualname}"] += count
    found = {"opcodes": functions, "c_calls": sum(c_calls.copy().values())}
    (folder / "counts.new").write_text(json.dumps(found))
    os.replace(folder / "counts.new", folder / "counts.json")  # noqa: PTH105 - whole or not at all


def main() -> None:
    folder = Path(sys.argv[1])
    at_start = sys.argv[2] == "--at-start"
    sys.argv[:] = sys.argv[3 if at_start else 2 :]
    signal.signal(signal.SIGUSR1, lambda *_: begin(folder))
    signal.signal(signal.SIGUSR2, lambda *_: end(folder))
    threading.settrace(entered)
    threading.setprofile(called)
    if at_start:
        begin(folder)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
