"""`python -m compoclip` is the command line."""

from compoclip.cli.main import entry

if __name__ == "__main__":
    entry()
