"""Start a federation on loopback, run an app on it, show the result, stop all processes."""

import argparse
import signal
import sys
from pathlib import Path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loopback", description=__doc__)
    parser.add_argument("app", type=Path, help="the folder of a Flower app that takes `nodes`, `rounds` and `out`")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--algorithms", default="fedavg fedprox fedkin", help="all run at the same time")
    parser.add_argument("--out", type=Path, default=Path("results/flower"), help="folder for the results")
    parser.add_argument("--secure", action="store_true", help="TLS, and only nodes whose keys are registered")
    parser.add_argument("--cold", action="store_true", help="start apps as new processes, as on separate machines")
    parser.add_argument("--fresh", action="store_true", help="repeat runs that have finished")
    given = parser.parse_args()
    # The processes that were started are ended on the way out. They also end if there is no way out, as with SIGKILL.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        from loopback.session import show  # PyTorch takes seconds to import, in which Ctrl-C is a sentence already

        show(given)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _leave("stopped; the same command continues", 130)
    except (RuntimeError, ValueError, OSError) as error:
        _leave(" ".join(str(error).split()), 1)


def _leave(sentence: str, code: int) -> None:
    print(sentence, file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
