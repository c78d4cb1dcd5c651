"""``python -m validation [NAME..]``: the verb ``weft validate``."""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main(["validate", *sys.argv[1:]]))
