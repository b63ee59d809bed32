"""Questions about runs: what a quantization, an engine, load or repetition changes. Imports runs and metrics.

A check says which runs it needs (`subjects`), has them made, and reads their answers; it never asks a model itself.
"""
