"""The training module that every bundle carries. It needs torch and the standard library, nothing else.

Owns the exact, resumable training run. Knows nothing of job specs and templates: it is told what to do by an
argv, a few environment variables and the files in the checkpoint directory. Only launch/ calls a scheduler.
"""
