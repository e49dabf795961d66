"""What becomes of a gap: an error that says what is missing and what to do, or a line in the log and a count."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import PenstockError
from penstock.spark.source.planning import Gap

logger: Final = logging.getLogger("penstock.spark")


class DataLoss(PenstockError):
    """Messages that a read was to give are not there."""

    code = "data_loss"


WAY_OUT: Final = (
    "To go on with what is there, set option failOnDataLoss=false (what is skipped is logged and counted), or start a "
    "new query with another checkpointLocation and startingOffsets. To keep messages until they are read, give their "
    "queue retain_ms or keep_done_ms, or, where it has no retain options, give the stream a cursor"
)


def judge_gaps(gaps: Sequence[Gap], *, fail: bool) -> None:
    """Raise for gaps, or log each of them."""
    if not gaps:
        return
    if fail:
        more = f" (and {len(gaps) - 1} more gaps)" if len(gaps) > 1 else ""
        raise DataLoss(f"messages that were to be read are not there: {gaps[0]}{more}. {WAY_OUT}.")
    for gap in gaps:
        logger.warning("skipped, because failOnDataLoss is false: %s (messages lost: %s)", gap, gap.lost or "unknown")
