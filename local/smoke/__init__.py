"""``make smoke-gcp``: settles on a real project, for cents, what Google's documents leave open."""
