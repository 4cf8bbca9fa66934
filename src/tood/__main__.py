"""``python -m tood``: the command line."""

from tood.cli import main

if __name__ == "__main__":
    main()
