"""Whether the hub has a model, checked before transformers is imported: a misspelt name is refused within a second."""

from __future__ import annotations

import functools


@functools.cache
def why_missing(name: str, revision: str | None) -> str:
    """Why a model can be had neither from the cache nor from the hub; empty if it can. Other errors are left to
    transformers, which explains them."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        hf_hub_download(name, "config.json", revision=revision)
    except (RepositoryNotFoundError, HFValidationError):
        return "the hub has no public model of that name"
    except LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            return "it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it to download the model"
        return "the hub cannot be reached, and the model is not in its cache: check the network, or give a local folder"
    except Exception:  # a model without config.json, no access, a full disk
        return ""
    return ""
