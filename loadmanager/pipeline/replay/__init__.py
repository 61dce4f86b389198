"""What other strategies and settings would have done: pure, without Spark.

`events` of a stretch of history become `frames`, one a round; a `ReplayRun` takes a
combination of strategies and settings through them, and `RecordedRounds` is what was recorded.
"""
