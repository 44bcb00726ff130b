"""The parts of a training run that the Trainer uses: data, randomness, optimizer, evaluation, records."""
