"""The commands of ``tood``, a module each, whose ``command`` the command line finds by name."""
