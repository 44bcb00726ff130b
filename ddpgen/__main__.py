"""`python -m ddpgen`: the same as the `ddpgen` command."""

from ddpgen.cli import main

if __name__ == "__main__":
    main()
