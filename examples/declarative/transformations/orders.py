"""A streaming table that grows with the queue `orders`: each run of the pipeline adds what came since the last one."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORDER = "order_id STRING, customer STRING, amount DOUBLE"


@dp.table(comment="Every order, typed; of what is none, the payload is kept in `malformed`.")
def orders() -> DataFrame:
    spark = SparkSession.active()
    source = spark.readStream.format("penstock").option("url", spark.conf.get("spark.penstock.url"))
    messages = source.option("queue", "orders").option("startingOffsets", "earliest").load()
    # Spark's own functions: penstock.spark.json_columns looks at a frame's columns, which pipelines do not allow here.
    order = F.from_json(F.col("payload").cast("string"), ORDER)
    typed = messages.withColumn("order", order)
    is_none = F.col("order.order_id").isNull()
    malformed = F.when(is_none, F.col("payload")).alias("malformed")
    return typed.select("queue", "lane", "offset", "published_at", "order.*", malformed)
