"""As much of curl as the documentation uses, for machines without it: `-s`, `-f`, `-X`, `-H`, `-d` and an address.

Only `test_docs.py` runs it, and only where there is no real one: a checkout's tests need git and Python, nothing else.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-f", action="store_true")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="data")
    parser.add_argument("url")
    options = parser.parse_args()
    data = None if options.data is None else options.data.encode()
    headers = dict(line.split(": ", 1) for line in options.headers)
    request = urllib.request.Request(options.url, data, headers, method=options.method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            sys.stdout.write(answer.read().decode())
    except urllib.error.HTTPError as error:
        if options.f:
            return 22
        sys.stdout.write(error.read().decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
