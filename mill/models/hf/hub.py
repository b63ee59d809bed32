"""Whether the hub has a model, checked before transformers is imported: a misspelt name is refused within a second."""

from __future__ import annotations

import functools


@functools.cache
def missing(name: str, revision: str | None) -> bool:
    """True if neither the cache nor the hub shows this model. Other errors are left to transformers, which explains them."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        hf_hub_download(name, "config.json", revision=revision)
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HFValidationError):
        return True
    except EntryNotFoundError:  # a model without config.json
        return False
    except Exception:  # no connection, no access, a full disk
        return False
    return False
