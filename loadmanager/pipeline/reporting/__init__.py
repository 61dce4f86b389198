"""The job ``report``: the parts of the report, each with its data, charts and conclusions.

A part has a function that reads a bounded number of rows of tables, and one that renders them
without Spark.
"""
