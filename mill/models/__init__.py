"""Backends, one a file, and how a spec becomes an opened model. Imports `mill.api` and
`mill.support`; engines load when used."""

from mill.api.registry import models
from mill.models.spec.backends import BACKENDS

for _backend in BACKENDS:
    for _name in _backend.names:
        models.add(_name, _backend.target)
