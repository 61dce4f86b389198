"""The job ``replay``: effect of other strategies and settings on the recorded traffic.

The `events` of a segment of history become `frames`, one for each round. A `ReplayRun` applies a
combination of strategies and settings to them; `RecordedRounds` measures the recorded decisions.
Only job, segments, spark_tasks and the tables use Spark.
"""
