"""A job that was launched, as far as it does not depend on the tier: where it is, how it stands, and how that is shown.

`places` runs programs here or on a login node, and `scripts` has the texts for bash. The text `driver/remote.LOOK` asks
what a checkpoint directory says, and `driver/state` reads the answer, on every tier. `report` says in words how a job
stands, `screen` and `watch` show it live. `record` keeps what was launched last, `snapshot` the bundle of it.
`tiers/commands.py` finds the tier of a run, and each tier has its own `follow` and `submit`. A render loads none of them.
"""
