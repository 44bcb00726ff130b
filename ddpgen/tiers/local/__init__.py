"""One machine: local.sh."""
