"""From the history of a cluster to tables, costs and replays, on Spark.

Nothing outside this folder imports Spark. A job is a pure function from data frames to
data frames and a thin entry that reads and writes.
"""
