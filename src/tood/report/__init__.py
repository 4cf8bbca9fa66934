"""What a person reads: tables, plots and the page, made from the metrics of runs."""
