"""What is measured: filters, schedulers, and the ways in which they are filled."""
