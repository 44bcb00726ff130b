"""Whether two runs are the same to the bit, and if not, where they part and what differed there.

    compare.py   what is on record of two runs → differences, ranked; losses; tensors   (torch for tensors only)
    diff.py      the command `ddpgen diff` for checkpoint directories and manifests
    command.py   the command `ddpgen verify`: which steps (record.py), computed again (workplace.py, replay.py)

Reads what runs have left behind. Changes none of it.
"""
