"""The speed of a job: predicted, measured by a bench or by a probe of the network, and plotted."""
