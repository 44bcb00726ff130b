"""Words of a user's command that each worker replaces, because the supervisor cannot know their values."""

# The port where the processes meet: torchrun chooses it.
MASTER_PORT = "{master-port}"
# The newest checkpoint that `resume.exists` matches on this host.
NEWEST = "{newest-checkpoint}"
