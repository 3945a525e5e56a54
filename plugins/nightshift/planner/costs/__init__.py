"""What a run costs: prices from a file, paid machine time split into its parts, and both together as a bill. Pure but for the
reading of the file. docs/operate/capacity.md has the formulas.
"""
