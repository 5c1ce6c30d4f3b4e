"""The best known programs of each kind, and what our own programs do beside them, for tools/bench.py --peers."""
