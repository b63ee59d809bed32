"""`python -m mill`."""

from mill.cli.main import main

if __name__ == "__main__":
    main()
