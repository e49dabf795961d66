"""A sink: large orders go on to the queue `large-orders`, each of them once."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

LARGE = 100

url = SparkSession.active().conf.get("spark.penstock.url")
dp.create_sink("large_orders", format="penstock", options={"url": str(url), "queue": "large-orders"})


@dp.append_flow(target="large_orders")
def large_orders_flow() -> DataFrame:
    """They keep queue, lane and offset, by which the sink knows them again."""
    orders = SparkSession.active().readStream.table("orders").where(F.col("amount") >= LARGE)
    body = F.to_json(F.struct("order_id", "customer", "amount"))
    return orders.select("queue", "lane", "offset", body.alias("payload"), F.col("customer").alias("partition"))
