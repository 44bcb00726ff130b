"""A run done again, compared with another, and its environment locked."""
