"""Entry point of `python -m bilrp`."""

from bilrp.cli import main

if __name__ == "__main__":
    main()
