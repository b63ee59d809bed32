"""Backends, one a file or folder, each with its description (`BACKEND`). Imports `mill.api` only; engines load when used."""
