"""What of a training has to outlive its machine, kept in a bucket or on another disk.

Owns the store: whole objects, each written once from its start to its end, so that a mount without
append, random write or rename is enough. Imported only where a training has one.
"""
