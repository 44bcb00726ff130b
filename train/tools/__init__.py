"""Commands that read the files of a run, or measure the machines for it: verify, diff, report, doctor, probe."""
