"""Programs that run inside a rig, each by itself: standard library only, and nothing of the others.

They are started as files with `python -S -E -s`, which takes a few hundredths of a second, and do not
import the package they lie in.
"""
