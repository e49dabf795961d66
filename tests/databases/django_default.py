"""Django's databases, for tests that need one: its settings are a process's own, and can be made once."""

from __future__ import annotations

from typing import Any

import django
import django.conf
from psycopg.conninfo import conninfo_to_dict


def _set_up() -> None:
    if not django.conf.settings.configured:
        django.conf.settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}}, LOGGING_CONFIG=None
        )
        django.setup()


def django_default(url: str) -> Any:
    """The connection `default`, closed, and to be opened to this address."""
    from django.db import connections

    _set_up()
    connection = connections["default"]
    parts = conninfo_to_dict(url)
    connection.close()
    connection.settings_dict |= {
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
    }
    return connection


def django_mysql(url: str) -> Any:
    """The connection `mysql`, closed, and to be opened to this address by PyMySQL."""
    import pymysql
    from django.db import connections

    from penstock.store.mysql.pool import StoreAddress

    pymysql.install_as_MySQLdb()
    _set_up()
    address = StoreAddress.parse(url)
    made = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.mysql",
                "NAME": address.database,
                "USER": address.user,
                "PASSWORD": address.password,
                "HOST": address.host,
                "PORT": address.port,
            }
        }
    )
    connections.settings["mysql"] = made["default"]
    return connections["mysql"]
