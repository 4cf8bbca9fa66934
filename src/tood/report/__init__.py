"""What a person reads: tables, figures and the page, made from the metrics of runs."""
