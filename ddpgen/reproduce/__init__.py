"""Reproduce a run, compare it with another, and lock its environment."""
