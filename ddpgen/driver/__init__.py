"""The driver of the hosts tier: from one terminal, over ssh, a job on every host of hosts.json.

It travels in the bundle as hosts/driver/ and runs without ddpgen. So it has relative imports, and needs only
the standard library. `python3 hosts/driver --help` shows its commands.
"""
