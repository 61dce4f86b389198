"""The job ``moves``: effects of moves, as pure functions of the ingested tables."""
