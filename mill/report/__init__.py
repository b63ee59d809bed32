"""Renderings of runs for people and programs. Imports runs and metrics; nothing of it calls a model."""
