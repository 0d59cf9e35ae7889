"""How long it takes: races on the judge's clock, cold caches, fresh values, intervals."""
