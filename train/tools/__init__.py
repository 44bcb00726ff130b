"""Commands that read what a run has left, or measure where it is to run: verify, diff, report, doctor, probe."""
