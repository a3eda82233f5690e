"""The papers' claims and their checker."""
