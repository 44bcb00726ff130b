"""Machines of a cloud, by SkyPilot: sky.yaml."""
