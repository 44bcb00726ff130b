"""Placeholders in a user's command. Each worker replaces them, because the supervisor cannot know their values."""

# The port where the processes meet: torchrun chooses it.
MASTER_PORT = "{master-port}"
# The newest checkpoint that `resume.exists` matches on this host.
NEWEST = "{newest-checkpoint}"
