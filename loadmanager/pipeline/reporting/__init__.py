"""The parts of the pipeline's report: what each reads, what it shows, and what it concludes.

A part has a function that reads a few rows of tables, whose number does not grow with the
history, and one that shows them; what is shown needs no Spark.
"""
