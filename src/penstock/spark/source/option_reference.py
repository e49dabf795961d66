"""The options of a read in words: the one list that checks, error messages and the documentation are made from."""

from __future__ import annotations

from typing import Final

READ_OPTIONS: Final = {
    "url": "The server, such as `http://127.0.0.1:7333`; several nodes with commas in between. Needed.",
    "token": "What the server asks for as a bearer token.",
    "namespace": "The namespace of the queues; `default` unless given.",
    "queue": (
        "A queue's name, several with commas in between, or patterns with `*`, `?` and `[abc]` (`orders-*`); a JSON "
        'list of names, `["a,b", "c*"]`, takes each as it is. Queues that begin with `$` are matched only by patterns '
        "that begin so. `load(name)` says the same. Needed."
    ),
    "startingOffsets": (
        '`earliest`, `latest`, or JSON with every lane of every queue, `{"orders": {"0": 23, "1": -2}}`: -2 is the '
        "lane's earliest offset, -1 its latest. Batch reads begin at `earliest`, streams at `latest`. A stream with a "
        "checkpoint goes on where it was, whatever is said here; queues that a pattern finds later begin at `earliest`."
    ),
    "endingOffsets": "Where a batch read ends, one past its last row, in the same words; `latest` unless given.",
    "startingTimestamp": (
        "Begin with what was published at that time or later: ISO 8601 (UTC without a zone), or milliseconds since "
        "1970. Wins over `startingOffsets`."
    ),
    "endingTimestamp": "A batch read ends before what was published at that time. Wins over `endingOffsets`.",
    "maxRowsPerTrigger": (
        "The most messages in one micro-batch, shared by the lanes in proportion to what each has waiting; 500000 "
        "unless given. With `where`, messages that do not match count too."
    ),
    "maxBytesPerTrigger": (
        "The most bytes in one micro-batch, as stored (compressed), shared alike; every lane that has its turn gives "
        "one stored batch at least. `maxRowsPerTrigger` holds as well."
    ),
    "minRowsPerTrigger": "A micro-batch waits until this many messages are there, or until `maxTriggerDelay`.",
    "maxTriggerDelay": "How long the first message of a micro-batch waits at most: `500ms`, `30s`, `15m`; 15 minutes.",
    "minPartitions": (
        "The least number of Spark partitions, by cutting lanes into slices. Without it there is one for each lane and "
        "250000 rows of it."
    ),
    "failOnDataLoss": (
        "`true`: messages that should be read and are not there fail the query, with queue, lane and offsets. `false`: "
        "they are skipped, logged by the Python logger `penstock.spark`, and counted as `lost` of their queue in the "
        "stream's offsets (`query.lastProgress`, source, `endOffset`)."
    ),
    "columns": "The columns to read, with commas in between; others are not fetched. A `.schema(…)` does the same.",
    "includePayload": "`false` leaves out the column `payload`: payloads stay at the server.",
    "packed": (
        "`true`: one row for each Arrow record batch, which is in the column `packed` as an IPC stream; for sinks that "
        "take Arrow, to which Spark then has no rows to carry. `penstock.spark.source.packing.unpacked` opens them."
    ),
    "where": "A filter on metadata that the server evaluates: only rows that match are sent.",
    "cursor": (
        "A stream group that shows how far a stream has come, and its lag, in `penstock group list`. It only follows: "
        "the checkpoint decides where the query goes on, and the cursor never moves back. As every stream group does, "
        "it keeps messages from being removed where a queue has no `retain_…` options."
    ),
    "group": "Batch reads: adds what this group makes of each message as `state`, `attempts` and `reason`.",
}
"""By the name as it is written; case does not matter."""

STREAM_ONLY: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "cursor")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "group")
