"""The errors a run ends with on purpose.

Owns the distinction between a failure that a restart can cure (any other exception) and one that it
cannot. Knows nothing of how either is reported.
"""

EXIT_FAILED = 1
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits(3): the directory is taken, or torch is missing
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits(3): stopped cleanly, run the same command to go on


class TrainError(Exception):
    """A fault that a restart would only meet again.

    The message says what is wrong, why, and what to do about it. It ends the attempt: it is
    reported without a traceback, and no worker is restarted.
    """
