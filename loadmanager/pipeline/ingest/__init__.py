"""The job ``ingest``: files of history become tables, each line once."""
