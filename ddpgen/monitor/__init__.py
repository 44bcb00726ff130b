"""A launched job: its place, its status, and ways to show it. Has the parts that do not depend on the tier.

`places` runs programs here or on a login node, and `scripts` has the texts for bash. On every tier but sky, the text
DIRECTORY_FACTS of `driver/remote` prints the facts of a checkpoint directory, and `driver/state` reads them. `report`
puts a job's status into words; `screen` and `watch` show it live. `record` keeps the last launch, and `snapshot` its
bundle.
`tiers/commands.py` finds the tier of a run, and each tier has its own `follow` and `submit`. A render loads none of
these modules.
"""
