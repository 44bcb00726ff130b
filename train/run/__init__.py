"""A run in its checkpoint directory: settings, lock and fence, manifest, metrics, status, stop. Imports no torch."""
