"""Orders and payments, two queues, joined while they flow into a third: `paid-orders`.

Both are JSON. What does not parse goes to the queue `rejected`, with where it came from; an order meets its payment if
that is made within an hour. Run it once over what is there, or for ever:

    python examples/clean_and_enrich.py --url http://127.0.0.1:7333
    python examples/clean_and_enrich.py --watch
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark import json_columns, spark_session

ORDER = "order_id STRING, customer STRING, amount DOUBLE, placed_at TIMESTAMP"
PAYMENT = "order_id STRING, method STRING, paid_at TIMESTAMP"


def read(spark: SparkSession, url: str, queue: str) -> DataFrame:
    """Everything that was ever in a queue, then what comes. Reading takes no message away from anybody."""
    reader = spark.readStream.format("penstock").options(url=url, queue=queue)
    return reader.option("startingOffsets", "earliest").load()


def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Each order with its payment."""
    placed = orders.select("order_id", F.lower("customer").alias("customer"), "amount", "placed_at")
    paid = payments.select(F.col("order_id").alias("paid_id"), "method", "paid_at")
    in_time = F.expr("order_id = paid_id AND paid_at BETWEEN placed_at AND placed_at + INTERVAL 1 HOUR")
    return placed.withWatermark("placed_at", "1 hour").join(paid.withWatermark("paid_at", "1 hour"), in_time)


def as_messages(frame: DataFrame) -> DataFrame:
    """One message an order. Its customer is its partition: a customer's orders stay in one lane."""
    body = F.to_json(F.struct("order_id", "customer", "amount", "method", "placed_at", "paid_at"))
    return frame.select(
        body.alias("payload"),
        F.col("customer").alias("partition"),
        F.create_map(F.lit("method"), F.col("method")).alias("headers"),
        F.lit("application/json").alias("content_type"),
    )


def rejects(frame: DataFrame) -> DataFrame:
    """What is not the JSON that was expected. It keeps queue, lane and offset, by which the sink knows it again."""
    origin = F.create_map(F.lit("from"), F.concat_ws("/", "queue", "lane", "offset"))
    bad = frame.where("malformed IS NOT NULL")
    return bad.select("queue", "lane", "offset", F.col("malformed").alias("payload"), origin.alias("headers"))


def write(frame: DataFrame, url: str, queue: str, checkpoint: str, trigger: dict[str, Any], **options: str) -> Any:
    writer = frame.writeStream.format("penstock").options(url=url, queue=queue, **options)
    return writer.option("checkpointLocation", f"{checkpoint}/{queue}").trigger(**trigger).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7333")
    parser.add_argument("--checkpoint", default="./checkpoints/enrich")
    parser.add_argument("--watch", action="store_true", help="go on with what comes; else stop when all is done")
    arguments = parser.parse_args()

    spark = spark_session("clean and enrich")
    for query in start(spark, arguments.url, arguments.checkpoint, watch=arguments.watch):
        query.awaitTermination()
    spark.stop()


def start(spark: SparkSession, url: str, checkpoint: str, *, watch: bool) -> list[Any]:
    trigger: dict[str, Any] = {"processingTime": "2 seconds"} if watch else {"availableNow": True}
    orders = json_columns(read(spark, url, "orders"), ORDER)
    payments = json_columns(read(spark, url, "payments"), PAYMENT)
    good = joined(orders.where("malformed IS NULL"), payments.where("malformed IS NULL"))
    return [
        # A row of a join has no offset of its own, and may come in a later batch than its parts did.
        write(as_messages(good), url, "paid-orders", checkpoint, trigger, identity="batch"),
        write(rejects(orders).unionByName(rejects(payments)), url, "rejected", checkpoint, trigger),
    ]


if __name__ == "__main__":
    main()
