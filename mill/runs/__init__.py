"""Runs: a plan that answers samples, records, judges and scores. Imports score, plan and store."""
