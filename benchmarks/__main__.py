"""``python -m benchmarks NAME``: the verb ``weft bench``."""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
