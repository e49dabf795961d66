"""Runs a program against a server on another port: what the program takes for the usual port is the given one.

python run.py PORT PROGRAM [ARGUMENT]…
"""

from __future__ import annotations

import runpy
import sys

import pika

if __name__ == "__main__":
    port, program = sys.argv[1:3]
    pika.ConnectionParameters.DEFAULT_PORT = int(port)
    sys.argv = sys.argv[2:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runpy.run_path(program, run_name="__main__")
