"""The papers' claims and their checker, and the networks that are counted here and never trained."""
