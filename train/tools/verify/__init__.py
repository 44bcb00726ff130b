"""The comparison of two runs: whether they are the same to the bit, and if not, where they part and why.

    compare.py   the records of two runs → differences, ranked; losses; tensors   (torch for tensors only)
    diff.py      the command `ddpgen diff` for checkpoint directories and manifests
    command.py   the command `ddpgen verify`: chooses steps (record.py), computes them again (workplace.py, replay.py)

Reads the files of runs, and changes none of them.
"""
