"""Commands of ``tood``: one module per command, found by its name, with a click command ``command``."""
