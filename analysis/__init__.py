"""From run records to estimates, tables, figures and the report."""
