"""Traces: named events on a message, and the timeline of one id across queues."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes

ROUTES = Routes(__name__)
