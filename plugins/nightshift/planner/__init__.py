"""What a run needs: how fast its workers are, how many of them, what they cost; and what runs measured."""
