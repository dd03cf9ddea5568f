"""`python -m bilrp` is the command line."""

from bilrp.cli import main

if __name__ == "__main__":
    main()
