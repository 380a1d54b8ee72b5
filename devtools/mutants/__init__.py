"""Known mistakes, and the tests that must detect them; `python -m devtools.mutants` tries them."""
