"""What a user's own script is given without an edit to it: hooks in torch and in the frameworks it imports.

They count optimizer steps, make `torch.save` atomic, see whether a restart went on from what was saved, and
end the training at a step boundary. Each is installed when the script imports the library, by after_import();
a hook that fails is told of once and never harms the script.
"""
