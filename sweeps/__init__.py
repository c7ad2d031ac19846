"""Grids: the configuration tree, expansion into runs, run identity and cost."""
