"""The driver of the hosts tier: from one terminal, over ssh, a job on every host of hosts.json.

It travels in the bundle as hosts/driver/ and runs where ddpgen is not installed: the standard
library only, and relative imports. `python3 hosts/driver --help` says what it can do.
"""
