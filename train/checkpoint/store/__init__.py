"""The store: a bucket or another disk, for the files of a training that must outlive its machine.

Every write replaces a whole object, from its start to its end, so that a mount without append, random write or rename
is enough. Imported only if a training has a store.
"""
