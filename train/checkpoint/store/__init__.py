"""The store: a bucket or another disk, for the files of a training that must outlive its machine.

Owns the store: whole objects, each written once from its start to its end, so that a mount without
append, random write or rename is enough. Imported only if a training has a store.
"""
