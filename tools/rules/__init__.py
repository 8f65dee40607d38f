"""Rules of this repository that no linter knows; `make check` runs them."""
