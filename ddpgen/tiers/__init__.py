"""The tiers: a folder each, and beside them what all of them share: ranks, the supervisor's command, tables for people."""
