"""Shared by all tests: one thread for each process and no GPU, so that tests may run side by side
and give the same numbers everywhere. ``make gpu`` says which GPUs it means; they stay visible."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
