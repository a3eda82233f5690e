"""How stored runs are made: an experiment states a run, recipes list experiments,
results are the tables of what was run, the ledger holds what the papers print, and
``cli`` is the command line."""
