"""The Spark data source `penstock`: what `spark.read.format("penstock")` and the other three begin with.

Says which columns a read has, and hands over to `readers.py` and `spark/sink/sink.py`.
Filters are never pushed down: Spark keeps a pushed filter for later reads of the same DataFrame, which would then
miss rows. The options `where`, `columns` and `includePayload` do that work.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.arrow import EXTRA_SCHEMA, MESSAGE_SCHEMA, STATE_SCHEMA, schema_of
from penstock.model import suggestion
from penstock.model.errors import InvalidArgument
from penstock.spark import tables
from penstock.spark.clients import Access
from penstock.spark.source.options import OPTIONS, ReadOptions, read_options
from penstock.spark.source.packing import PACKED_SCHEMA
from penstock.spark.source.readers import PenstockBatchReader, PenstockStreamReader
from penstock.spark.source.reading import ReadSpec


class PenstockSource(DataSource):
    """Queues as tables: the log of one or several, by offset."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns of a read, or of a table. Spark asks before it is known whether the read is a stream."""
        kept = tables.table_options(self.options)
        options = read_options(self.options if kept is None else tables.only(kept, OPTIONS), streaming=None)
        columns = columns_of(options)
        schema = from_arrow_schema(PACKED_SCHEMA) if options.packed else spark_schema(columns)
        return schema if kept is None else tables.with_options(schema, kept)

    def reader(self, schema: StructType) -> PenstockBatchReader:
        """For `spark.read`. The schema is that of above, or the user's own: columns that are not in it are not read."""
        options = read_options(tables.options_of(self.options, schema, tables.READS), streaming=False)
        return PenstockBatchReader(options, _spec(options, schema))

    def streamReader(self, schema: StructType) -> PenstockStreamReader:
        """For `spark.readStream`."""
        options = read_options(tables.options_of(self.options, schema, tables.STREAM_READS), streaming=True)
        return PenstockStreamReader(options, _spec(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from penstock.spark.sink.sink import batch_writer

        return batch_writer(tables.options_of(self.options, schema, tables.WRITES), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from penstock.spark.sink.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def columns_of(options: ReadOptions) -> tuple[str, ...]:
    """The columns of a read: those of the option, or all usual ones and with a group what it makes of a message."""
    usual, state = MESSAGE_SCHEMA.names, STATE_SCHEMA.names
    if options.columns is None:
        columns = [*usual, *(state if options.group is not None else ())]
        return tuple(name for name in columns if options.payload or name != "payload")
    known = [*usual, *EXTRA_SCHEMA.names, *state]
    for name in options.columns:
        if name not in known:
            raise InvalidArgument(f"option columns names {name!r}: {suggestion(name, known, cutoff=0.5)}")
        if name in state and options.group is None:
            raise InvalidArgument(f"column {name!r} is what a group makes of a message: name it with option group")
    if "payload" in options.columns and not options.payload:
        raise InvalidArgument("option columns names payload, and includePayload is false: leave one of them out")
    if options.group is not None and not set(state) & set(options.columns):
        raise InvalidArgument(f"option group adds {', '.join(state)}, and option columns names none of them")
    return options.columns


def spark_schema(columns: tuple[str, ...]) -> StructType:
    """The same as Spark's types."""
    return from_arrow_schema(schema_of(columns))


def _ddl(field: StructField) -> str:
    return f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"


def _spec(options: ReadOptions, schema: StructType) -> ReadSpec:
    """What tasks need to know; the schema may be the user's own, and leave columns out."""
    access = Access(options.url, options.token, options.namespace)
    if options.packed:
        if tuple(schema.fieldNames()) != tuple(PACKED_SCHEMA.names):
            raise InvalidArgument("a packed read has its own schema: choose with option columns what is in the packs")
        return ReadSpec(access, columns_of(options), options.where, options.group, options.fail_on_data_loss, True)
    columns = tuple(schema.fieldNames())
    allowed = set(columns_of(options)) | (set() if options.columns else set(EXTRA_SCHEMA.names))
    for name in columns:
        if name not in allowed:
            raise InvalidArgument(f"the schema has a column {name!r}, and this read has {', '.join(sorted(allowed))}")
    for wanted, real in zip(schema.fields, spark_schema(columns).fields, strict=True):
        if wanted.dataType != real.dataType or not wanted.nullable:
            raise InvalidArgument(f"the schema says {_ddl(wanted)}; it must be {_ddl(real)}: cast it after reading")
    return ReadSpec(access, columns, options.where, options.group, options.fail_on_data_loss)
