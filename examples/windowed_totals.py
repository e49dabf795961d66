"""Sales by shop and minute, from the queue `sales` into the queue `totals`, each total once.

A minute is summed up when the watermark has passed it: sales that come more than two minutes late are left out, and
nothing is published twice, whatever is killed in between.

    python examples/windowed_totals.py --url http://127.0.0.1:7333
    python examples/windowed_totals.py --watch
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark import json_columns, spark_session

SALE = "shop STRING, cents BIGINT, sold_at TIMESTAMP"


def totals(sales: DataFrame) -> DataFrame:
    good = sales.where("malformed IS NULL").withWatermark("sold_at", "2 minutes")
    by_minute = good.groupBy("shop", F.window("sold_at", "1 minute").alias("minute"))
    return by_minute.agg(F.count("*").alias("sales"), F.sum("cents").alias("cents"), F.max("cents").alias("largest"))


def as_messages(frame: DataFrame) -> DataFrame:
    """One message a shop and minute; the shop is the partition, so its totals are read in order of their lane."""
    body = F.to_json(F.struct("shop", F.col("minute.start").alias("minute"), "sales", "cents", "largest"))
    return frame.select(
        body.alias("payload"),
        F.col("shop").alias("partition"),
        F.lit("application/json").alias("content_type"),
    )


def start(spark: SparkSession, url: str, checkpoint: str, *, watch: bool) -> Any:
    reader = spark.readStream.format("penstock").options(url=url, queue="sales", startingOffsets="earliest")
    # Shown by `penstock group list sales`, with how far behind the newest sale the query is.
    sales = json_columns(reader.option("cursor", "windowed-totals").load(), SALE)
    writer = as_messages(totals(sales)).writeStream.format("penstock").options(url=url, queue="totals")
    writer = writer.outputMode("append").option("checkpointLocation", checkpoint)
    return writer.trigger(**({"processingTime": "5 seconds"} if watch else {"availableNow": True})).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7333")
    parser.add_argument("--checkpoint", default="./checkpoints/totals")
    parser.add_argument("--watch", action="store_true", help="go on with what comes; else stop when all is done")
    arguments = parser.parse_args()

    spark = spark_session("windowed totals")
    start(spark, arguments.url, arguments.checkpoint, watch=arguments.watch).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
