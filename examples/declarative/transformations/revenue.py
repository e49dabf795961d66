"""A materialized view on the table of orders: made anew, as a whole, with each run."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


@dp.materialized_view(comment="What each customer spent.")
def revenue() -> DataFrame:
    orders = SparkSession.active().read.table("orders").where("malformed IS NULL")
    return orders.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
