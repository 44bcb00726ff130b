"""Which rank the others wait for: phases, heartbeats, and the diagnosis that is made of them.

Standard library only, on Python 3.9 too: what asks may be a batch host's system Python.
"""
