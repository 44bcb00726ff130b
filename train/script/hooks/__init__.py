"""Hooks in torch and in the frameworks that a user's own script imports; the script itself stays unedited.

They count optimizer steps, make `torch.save` atomic, check that a restart went on from the saved state, and end the
training at a step boundary. When the script imports a library, after_import() installs the library's hook. A hook that
fails prints one line and never harms the script.
"""
