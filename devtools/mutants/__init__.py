"""Known mistakes, and the tests that must notice them; `python -m devtools.mutants` tries them."""
