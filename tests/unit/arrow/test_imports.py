"""Arrow is for those who ask for it: neither the package nor a server imports it by itself."""

from __future__ import annotations

import subprocess
import sys

from penstock.cli.dev.checkout import script_environment

PROGRAM = """
import sys
import penstock, penstock.client.sync, penstock.cli.main, penstock.fronts.http.server
from penstock.fronts.http.handlers import all_routes
all_routes()
print(sorted({"pyarrow", "numpy", "pyspark", "deltalake"} & set(sys.modules)))
"""


def test_penstock_does_not_import_arrow() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=script_environment()
    )
    assert ended.stdout.strip() == "[]"
