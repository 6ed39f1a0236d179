"""``python -m perfnb``: the command line."""

import sys

from perfnb.command.main import main

sys.exit(main())
