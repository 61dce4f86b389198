"""Python's garbage collector in a process that answers within milliseconds."""

import gc


def spare_what_stays() -> None:
    """Leave all that exists by now out of every later collection.

    To be called when everything is imported and nothing runs yet. What the imports made,
    some hundred thousand objects, lives as long as the process; to look through all of it
    takes 50 ms of CPU, and a process answers no request meanwhile. It happens after every few
    hundred hand-overs or reports, and was the longest pause of all.
    """
    gc.collect()
    gc.freeze()
