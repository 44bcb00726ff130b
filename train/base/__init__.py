"""Files, processes, the network interface, messages and errors: the parts that every other one uses. Imports no torch."""
