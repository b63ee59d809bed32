"""mill evaluates models and the engines that serve them."""

__version__ = "0.1.0"
