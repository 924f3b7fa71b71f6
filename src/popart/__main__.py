"""`python -m popart` is the command `popart`."""

from popart.lab.cli import main

if __name__ == "__main__":
    main()
