"""`python -m bench.unobserved serve ...`: dragoman as it is, but nobody hears how a request ended.

What `bench.observers` compares with: no usage rows, no metrics, no log lines, and no outcome to make them from.
"""

from dragoman.cli.main import main
from dragoman.flow.audience import Audience

if __name__ == "__main__":
    Audience.hear = lambda audience, trail: None  # type: ignore[method-assign]
    main()
