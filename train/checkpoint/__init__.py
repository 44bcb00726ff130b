"""Checkpoints: their files on disk, when they are taken, their copy in a store, and the way back into a run."""
