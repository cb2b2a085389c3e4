"""`python -m app` is the command `ragstone`."""

from app.cli import main

if __name__ == "__main__":
    main()
