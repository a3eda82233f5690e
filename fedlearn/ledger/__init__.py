"""The papers' claims and their checker, and the networks that are only counted, never trained."""
