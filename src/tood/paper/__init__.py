"""The TOOD paper's experiments: toy, ablations, tables and their runs. Imported by commands only."""
