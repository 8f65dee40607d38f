"""The pure core: parse, build, decode and encode every protocol through one set of values. No I/O, no clock."""
