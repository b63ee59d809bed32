"""Tasks and models of other evaluation harnesses as those of mill, and the other way round."""
