"""How costs are estimated: plain numpy, but for the files that begin with ``spark_``."""
