"""A job of Slurm: batch.py runs on its first node, once for each start, and srun starts node.py on every node.

batch.py       one start, from the batch script to the requeue
decision.py    the meaning of a start's end             (functions over values)
directory.py   the job's files in the checkpoint directory
exclusion.py   the bad nodes to leave out               (functions over values)
job.py         scontrol's words about the job
node.py        the tier of the supervisor on a node
step.py        srun's command, and the end of its step
"""
