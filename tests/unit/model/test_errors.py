"""The catalogue of errors: a row for every error, and in every row what the protocols' specifications allow."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from http import HTTPStatus

import pytest

import penstock
from penstock.model.errors import BY_CODE, CATALOGUE, CLASSES, PenstockError, Row, UnknownError, error_classes
from penstock.wire.amqp091 import codes
from penstock.wire.mqtt.reasons import Reason

PUBACK = {0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
"""The refusals of MQTT 5, table 3-4."""
CONDITIONS = {
    *("internal-error", "not-found", "unauthorized-access", "decode-error", "resource-limit-exceeded", "not-allowed"),
    *("invalid-field", "not-implemented", "resource-locked", "precondition-failed", "resource-deleted"),
    *("illegal-state", "frame-size-too-small", "connection:forced", "connection:framing-error", "connection:redirect"),
    *("link:detach-forced", "link:transfer-limit-exceeded", "link:message-size-exceeded", "link:redirect"),
    *("link:stolen", "transaction:unknown-id", "transaction:rollback", "transaction:timeout"),
}
"""AMQP 1.0, sections 2.8.14 to 2.8.18 and 4.5.8."""
SQS = {
    *("AccessDenied", "BatchRequestTooLong", "InternalFailure", "InvalidAttributeName", "InvalidAttributeValue"),
    *("InvalidClientTokenId", "InvalidMessageContents", "InvalidParameterValue", "OverLimit", "QueueDoesNotExist"),
    *("QueueNameExists", "ReceiptHandleIsInvalid", "RequestThrottled", "ServiceUnavailable", "UnsupportedOperation"),
}
"""Of the API's own and common errors, those that have a use here."""


def everything() -> list[type[PenstockError]]:
    """Every class of error in the package, whatever module it is in."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in error_classes() if kind.__module__.startswith("penstock.")]


def test_every_error_has_a_code_and_a_row_of_its_own() -> None:
    kinds = everything()
    assert [code for code, count in Counter(kind.code for kind in kinds).items() if count > 1] == []
    assert [kind.__name__ for kind in kinds if kind.row is not BY_CODE[kind.code]] == []
    assert sorted(BY_CODE) == sorted(kind.code for kind in kinds), "a row without an error, or an error without a row"
    assert len(CATALOGUE) == len(BY_CODE)


def test_every_error_says_what_it_means() -> None:
    for kind in everything():
        text = kind.__doc__ or ""
        assert text.endswith("."), kind
        assert "\n" not in text, f"{kind.__name__}: one line, for the table in docs/errors.md"


def test_an_error_without_a_row_cannot_be_defined() -> None:
    with pytest.raises(KeyError):
        type("Odd", (PenstockError,), {"code": "odd"})


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.code)
def test_every_column_is_of_its_specification(row: Row) -> None:
    assert HTTPStatus(row.http).value >= 400
    assert row.amqp091 in codes.NAMES
    assert Reason(row.mqtt) in PUBACK
    assert row.amqp10.removeprefix("amqp:") in CONDITIONS
    assert row.sqs in SQS


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.code)
def test_what_may_be_tried_again_says_so_in_every_protocol(row: Row) -> None:
    """A client that knows only its protocol's numbers draws the same conclusion as one that reads the catalogue."""
    if row.retryable:
        assert row.http in (429, 503)
        assert row.amqp091 >= 500 or row.closes == "connection"
        assert row.sqs in ("RequestThrottled", "ServiceUnavailable")
    if row.http < 429:
        assert not row.may_be_done, "a refusal that a client takes for final is one"


def test_a_subclass_is_answered_no_more_mildly_than_its_base() -> None:
    """Who catches a class catches what is below it: only a retryable error may be below a retryable one, or none."""
    for kind in everything():
        for below in kind.__subclasses__():
            if kind is not PenstockError and not kind.row.retryable:
                assert not below.row.retryable, below


def test_an_error_of_a_newer_server_keeps_its_code() -> None:
    error = UnknownError("no tea", "teapot")
    assert (error.code, error.row, str(error)) == ("teapot", BY_CODE["unknown_error"], "no tea")
    assert CLASSES[UnknownError.code] is UnknownError
