"""``python -m hyper_pp`` is ``hyper-pp``."""

import sys

from hyper_pp.cli import main

if __name__ == "__main__":
    sys.exit(main())
