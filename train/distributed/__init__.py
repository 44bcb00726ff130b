"""Many processes as one: their group, the share of each, and sums whose bits depend on no process count."""
