"""The data: `sources` finds and loads a set, `partition` says which client holds which sample."""
