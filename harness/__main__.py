"""`python -m harness`, and the `harness` script: an interrupt while loading is one line too."""

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from harness.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("harness: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
