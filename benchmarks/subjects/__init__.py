"""The subjects of the measurements: filters, schedulers, and the ways in which they are filled."""
