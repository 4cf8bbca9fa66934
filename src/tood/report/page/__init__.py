"""The report page: one HTML file that opens without a network."""
