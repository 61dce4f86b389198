"""The job ``report``: the sections of the report, each with its data, charts and conclusions."""
