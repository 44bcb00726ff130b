"""`--probe`: what the network and the collectives of a job give, in the same launch as the training.

    command.py   the worker that measures
    figures.py   what was measured, the table, the verdict    (plain values, no torch)
    measure.py   the measurements, on every rank
    wire.py      plain TCP between two hosts, by the interface that the job uses

Owns what is measured and how. Knows nothing of models, steps or checkpoints.
"""
