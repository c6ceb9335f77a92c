"""`python -m fasttrack` and the console script. Parses on old Pythons, so that they get a message, not a traceback."""

import sys


def main():
    """Runs the command line and exits with its code."""
    if sys.version_info < (3, 11):
        _stop("fasttrack needs Python 3.11 or later; this is " + sys.version.split()[0], "use a newer python3")
    try:
        from fasttrack import cli
    except ModuleNotFoundError as error:
        _stop("a package is missing: " + str(error), "install with `pip install -e .` in the checkout, or run `make`")
    sys.exit(cli.run(sys.argv[1:]))


def _stop(what, how):
    sys.stderr.write(what + "\n" + how + "\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
