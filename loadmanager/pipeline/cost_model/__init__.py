"""The job ``costs``: estimation with numpy; only ``spark_*`` and the job itself use Spark."""
