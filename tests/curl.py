"""As much of curl as the documentation and `penstock serve` show: `-s`, `-S`, `-f`, `-X`, `-H`, `-d`, an address.

Tests put `CURL` before a shell script. It does nothing where curl is installed, and defines a stand-in where it is not:
the tests of a checkout need git and Python, nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import urllib.error
import urllib.request
from typing import Final

CURL: Final = "" if shutil.which("curl") else f'curl() {{ "{sys.executable}" "{__file__}" "$@"; }}\n'


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-S", action="store_true")
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
