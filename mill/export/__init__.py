"""Runs in the formats and trackers of other tools: `targets` lists them, `run` is what all of them read."""
