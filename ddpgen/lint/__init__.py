"""The faults of a user's own code that are visible before a launch: scripts, commands, workloads and lines of bash."""
