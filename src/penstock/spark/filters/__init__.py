"""Filters and bindings as Spark columns: the second back end of the filter language."""
