"""Files, processes, the network interface, messages and errors, for all other packages. Imports no torch."""
