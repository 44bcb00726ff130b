"""`ddpgen adopt`: an existing launch script → a spec, and remarks about the script. Also the specs of `ddpgen init`."""
