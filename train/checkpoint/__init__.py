"""Checkpoints: their files on disk, when they are taken, their copy in a store, and the way back into a run.

checkpointer.py  when they are taken, their content, the thread that writes    (rank 0)
copies.py        the copy of the state that is written
disk.py          the bytes of a checkpoint, its marker, verification, retention
remote.py        the copy in a store                   (download.py: the way back; segments.py: the metrics)
resume.py        the newest of all hosts, loaded into every process
selection.py     the best evaluation so far, and early stop
state.py         all that a step changes: parameters, optimizers, scaler, step
store/           the object store, which outlives the machine
"""
