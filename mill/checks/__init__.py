"""Checks compare runs: what a quantization, an engine, load or repetition changes. Imports runs and metrics.

A check plans the runs it needs (`subjects`), executes them and reads their answers. It never calls a model itself.
"""
