"""`python -m dragoman` is `dragoman`."""

from dragoman.cli.main import main

main()
