"""`python -m mill`."""

from mill.cli.start import main

if __name__ == "__main__":
    main()
