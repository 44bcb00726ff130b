"""A run in its checkpoint directory: settings, the lock and its fence, manifest, metrics, status, stop. Imports no torch."""
