"""The command line: `penstock …`. It may use every layer and none of them knows it; `main.py` is the way in."""
