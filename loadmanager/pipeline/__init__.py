"""Jobs on Spark that turn the history of a cluster into tables, costs, replays and reports.

Nothing outside this folder imports Spark. A job consists of pure functions from data frames to
data frames, and of a thin ``run`` that reads and writes tables.
"""
