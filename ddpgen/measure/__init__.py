"""The speed of a job: predicted from a short run, measured by a benchmark, a probe of the network, and plotted."""
