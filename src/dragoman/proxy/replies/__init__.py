"""The replies of one upstream turn: each real case a class, chosen by a pure function."""
