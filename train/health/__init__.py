"""Find the rank that holds the others up: phases, heartbeats, and the diagnosis from them.

Standard library only, on Python 3.9 too, because the doctor may run in a batch host's system Python.
"""
