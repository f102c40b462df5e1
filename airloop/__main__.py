"""`python -m airloop` is `air`."""

from airloop.cli import main

if __name__ == "__main__":
    main()
