"""A list of hosts: a script for each, and the driver that starts them by ssh."""
