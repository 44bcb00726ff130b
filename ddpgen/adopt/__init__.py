"""`ddpgen adopt`: an existing launch script → a spec, and what has to be said about the script."""
