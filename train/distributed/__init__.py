"""Many processes as one: their group, who has which share, and sums whose bits depend on no process count."""
