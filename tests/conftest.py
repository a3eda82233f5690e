"""Shared by all tests: one thread for each process, so that tests may run side by side and give the
same numbers."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
