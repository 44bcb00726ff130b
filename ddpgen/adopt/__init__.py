"""`ddpgen adopt`: a launch script → a spec, and remarks about the script. Also the specs of `ddpgen init`."""
