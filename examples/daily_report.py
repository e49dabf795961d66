"""A day of orders from the lake that `penstock pipeline archive` fills: what was sold, and who bought most.

The lake is read without a server: Parquet under a Delta log. Only the files of the day and queue are opened.

    python examples/daily_report.py --lake ./lake --day 2026-03-01
"""

from __future__ import annotations

import argparse
import datetime as dt

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark import json_columns, read_lake, spark_session

ORDER = "order_id STRING, customer STRING, amount DOUBLE"


def orders_of(spark: SparkSession, lake: str, day: dt.date) -> DataFrame:
    begin = dt.datetime.combine(day, dt.time(), dt.UTC)
    rows = read_lake(spark, lake, queues=["orders"], start=begin, end=begin + dt.timedelta(days=1))
    return json_columns(rows, ORDER)


def by_hour(orders: DataFrame) -> DataFrame:
    good = orders.where("malformed IS NULL")
    hours = good.groupBy(F.hour("published_at").alias("hour"))
    return hours.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount")).orderBy("hour")


def best_customers(orders: DataFrame, most: int = 10) -> DataFrame:
    good = orders.where("malformed IS NULL")
    each = good.groupBy("customer").agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
    return each.orderBy(F.desc("amount"), "customer").limit(most)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lake", default="./lake")
    parser.add_argument("--day", type=dt.date.fromisoformat, default=dt.datetime.now(dt.UTC).date(), help="in UTC")
    arguments = parser.parse_args()

    spark = spark_session("daily report")
    orders = orders_of(spark, arguments.lake, arguments.day).cache()
    unreadable = orders.where("malformed IS NOT NULL").count()
    print(f"{orders.count():,} orders on {arguments.day}, {unreadable} of them unreadable")
    by_hour(orders).show(24)
    best_customers(orders).show()
    spark.stop()


if __name__ == "__main__":
    main()
