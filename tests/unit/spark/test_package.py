"""What `penstock.spark` names can be had from it, also what is only imported when it is asked for."""

from __future__ import annotations

import pytest

from penstock import spark


@pytest.mark.parametrize("name", spark.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(spark, name).__name__ == name


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"'penstock\.spark' has no attribute 'nothing'"):
        spark.nothing  # noqa: B018
