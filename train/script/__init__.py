"""A training loop of the user's own, run as it is: each worker is one process of it, and hooks observe it."""
