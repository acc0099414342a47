"""The command as it is installed, and as `python -m fedkin`: Ctrl-C is one sentence from the first moment on."""

import sys

from fedkin.cores import share_cores


def start() -> None:
    """Import and run the command."""
    try:
        share_cores()  # before PyTorch is imported
        from fedkin.cli import main

        main()
    except KeyboardInterrupt:  # while the command is imported
        print("fedkin: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    start()
