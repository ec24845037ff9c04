"""The command line: one file per verb, one place where errors become exit codes."""
