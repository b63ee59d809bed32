"""A read-only index over result folders, and the pages that show them."""
