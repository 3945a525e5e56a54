"""nightshift: a warehouse table turned into predictions every night."""

__version__ = "0.1.0"
