"""What has been launched: submit it to Slurm or SkyPilot, say how it stands, show its output, stop it.

`commands` finds the tier and hands over to its `at_…`. `submit_…` launch. `slurm_jobs` and `sky_jobs` are the
formats of the two schedulers' programs; `places` runs those here or on a login node, `skypilot` here, and
`scripts` are the texts for bash. What a checkpoint directory says is asked by the text `driver/remote.LOOK` and read by
`driver/state`, on every tier. `report` is how a job stands, in words, `bucket` and `store` where and how a bucket says
the same, `record` what was launched last. Nothing of it is loaded to render.
"""
