"""Builds the results pages of the documentation from the committed metrics. Not part of the package."""
