"""The parts of a training run that the Trainer puts together: data, randomness, optimizer, evaluation, records."""
