"""The garbage collector's threshold of a server process."""

GC_THRESHOLD = 50_000  # allocations between two collections; serving requests creates no cyclic garbage
