"""What moves achieved: pure functions from the ingested tables to those of the job ``moves``."""
