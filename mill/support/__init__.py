"""Files, terminals, secrets, processes and clocks: nothing here knows of evaluation. Imports `mill.api.errors` only."""
