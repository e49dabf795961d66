"""Django's default database, for tests that need one: its settings are a process's own, and can be made once."""

from __future__ import annotations

from typing import Any

import django
import django.conf
from psycopg.conninfo import conninfo_to_dict


def django_default(url: str) -> Any:
    """The connection `default`, closed, and to be opened to this address."""
    from django.db import connections

    if not django.conf.settings.configured:
        django.conf.settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, LOGGING_CONFIG=None
        )
        django.setup()
    connection = connections["default"]
    parts = conninfo_to_dict(url)
    connection.close()
    connection.settings_dict |= {
        "NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts["port"],
    }  # fmt: skip
    return connection
