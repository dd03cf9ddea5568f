"""Files that are whole or absent, stored results, and the cache of them. May import errors only."""
