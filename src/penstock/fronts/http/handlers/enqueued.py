"""Messages that applications enqueued in the database and that cannot be published: list, try again, let go."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes

ROUTES = Routes(__name__)
