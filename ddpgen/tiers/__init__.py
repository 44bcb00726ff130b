"""Each tier has a folder. All tiers share the modules: ranks, the supervisor's command, tables for people."""
