"""`--probe`: the network and the collectives of a job, measured in the same launch as the training.

    command.py   the worker that measures
    figures.py   the results, the table, the verdict          (plain values, no torch)
    measure.py   the measurements, on every rank
    wire.py      plain TCP between two hosts, on the interface that the job uses

Owns the measurements and their methods. Knows nothing of models, steps or checkpoints.
"""
