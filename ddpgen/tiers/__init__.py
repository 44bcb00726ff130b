"""Each tier has a folder. The modules are shared by all of them: ranks, the supervisor's command, tables for people."""
