"""``python -m fedlearn``."""

import sys

from .cli import main

sys.exit(main())
