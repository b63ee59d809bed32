"""The `clip` backend: open_clip's image-text models, labels ranked by cosine similarity."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.api.batching import free_memory
from mill.api.engine import local_engine
from mill.api.errors import DataError, ModelError, SpecError, UnknownName
from mill.api.message import IMAGE, Labels
from mill.api.model import ModelCapabilities
from mill.api.request import ZERO_SHOT, Request
from mill.api.response import Response
from mill.models.device import one_device
from mill.models.media.inputs import failure
from mill.models.media.vision_model import VisionModel, ranked
from mill.models.spec.fingerprint import file_digest, folder_digest
from mill.support.terminal import describe, warn

TEXT_BATCH = 256
CACHED_LABEL_SETS = 64


class ClipModel(VisionModel):
    """`path` is an architecture's name, or a folder with an open_clip config and its weights; `pretrained` is a tag of
    the architecture or a checkpoint file.

    A request is an image and labels, or a text and candidate images. A label's embedding is the mean over the task's
    templates, or over `prompt_template` where the task has none.
    """

    def __init__(
        self,
        path: str,
        pretrained: str | None = None,
        batch_size: int = 64,
        prompt_template: str = "a photo of a {c}.",
        max_context_length: int = 77,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        if "{c}" not in prompt_template:
            raise SpecError(f"clip[prompt_template={prompt_template}]: it needs {{c}} for the class name")
        if max_context_length < 3:
            raise SpecError(f"clip[max_context_length={max_context_length}]: at least 3 tokens are needed")
        self.path, self.pretrained, self.batch_size = path, pretrained, batch_size
        self.prompt_template, self.max_context_length = prompt_template, max_context_length
        self.dtype, self.device = dtype, device
        self._check_options("clip", dtype)
        self._folder = Path(path).expanduser() if Path(path).expanduser().is_dir() else None
        self._check_names()
        self.capabilities = ModelCapabilities({IMAGE, "text"}, max_context_length, kinds=frozenset({ZERO_SHOT}))
        self._loaded: tuple[Any, Any, Any] | None = None
        self.use_engine(local_engine("open_clip_torch", "torch"))
        self._candidates: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._warnings: list[str] = []
        if self._folder is None and pretrained is None:
            self._warnings.append(f"the weights of {path} are random: pass pretrained=...")

    def _check_names(self) -> None:
        import open_clip

        if self._folder is not None:
            if not (self._folder / "open_clip_config.json").is_file():
                raise ModelError(f"model folder {self.path} has no open_clip_config.json")
            return
        if ":" in self.path:  # hf-hub:org/name
            return
        if self.path not in open_clip.list_models():
            raise UnknownName("open_clip architecture", self.path, open_clip.list_models(), "a name such as ViT-B-32")
        tags = open_clip.list_pretrained_tags_by_model(self.path)
        if self.pretrained is None or self.pretrained in tags or Path(self.pretrained).expanduser().is_file():
            return
        hint = f"it has {', '.join(tags)}" if tags else "it has none"
        raise UnknownName(f"pretrained tag of {self.path}", self.pretrained, tags, f"{hint}; a checkpoint file works too")

    @property
    def model_name(self) -> str:
        if self._folder is not None:
            return self._folder.resolve().name
        tag = Path(self.pretrained).stem if self.pretrained else ""
        return f"{self.path}-{tag}" if tag else self.path

    def identity(self) -> dict[str, Any]:
        """Architecture, weights, and the settings that change the embeddings."""
        file = Path(self.pretrained).expanduser() if self.pretrained else None
        return {
            "backend": "clip",
            "path": folder_digest(self._folder) if self._folder is not None else self.path,
            "pretrained": file_digest(file) if file and file.is_file() else self.pretrained,
            "prompt_template": self.prompt_template,
            "max_context_length": self.max_context_length,
            "dtype": self.dtype,
        }

    def warnings(self) -> list[str]:
        return list(self._warnings)

    def load(self) -> None:
        _ = self._parts

    def clean(self) -> None:
        self._loaded = None
        self._candidates.clear()
        free_memory()

    @property
    def _parts(self) -> tuple[Any, Any, Any]:
        """The model, its preprocessing and its tokenizer."""
        if self._loaded is None:
            import open_clip
            import torch

            name = f"local-dir:{self._folder.resolve()}" if self._folder is not None else self.path
            self._device = one_device(self.device)
            torch.manual_seed(0)  # random weights are the same in every run
            try:
                model, _, transform = open_clip.create_model_and_transforms(name, pretrained=self.pretrained)
                tokenizer = open_clip.get_tokenizer(name)
            except Exception as error:  # open_clip, the hub's client and torch raise many kinds
                raise ModelError(f"open_clip cannot load {self.model_name}: {describe(error)}") from error
            model = model.to(self._device, getattr(torch, self.dtype)).eval()
            self._loaded = model, transform, tokenizer
        return self._loaded

    def _pixels(self, image: Any) -> Any:
        return self._parts[1](image)

    def _answer_batch(self, requests: Sequence[Request], pixels: Sequence[Any]) -> list[Response]:
        """Requests with the same labels are compared with them in one product."""
        queries, query_cuts = self._embed_queries(requests, pixels)
        rows_of: dict[Labels, list[int]] = {}
        for row, request in enumerate(requests):
            if not request.labels:
                raise ValueError("a zero-shot request has no labels")
            rows_of.setdefault(request.labels, []).append(row)
        answers: dict[int, Response] = {}
        for labels, rows in rows_of.items():
            try:
                candidates, cut = self._embed_labels(labels)
            except DataError as error:  # a candidate image that cannot be read
                answers |= dict.fromkeys(rows, failure(error))
                continue
            for row, response in zip(rows, ranked(labels.names, (queries[rows] @ candidates.T).cpu()), strict=True):
                answers[row] = replace(response, truncated_tokens=cut + query_cuts.get(row, 0))
        return [answers[row] for row in range(len(requests))]

    def _embed_queries(self, requests: Sequence[Request], pixels: Sequence[Any]) -> tuple[Any, dict[int, int]]:
        """Unit vectors of each image, or of the request's text where it has none; and the tokens cut from texts."""
        import torch

        images = [index for index, image in enumerate(pixels) if image is not None]
        texts = [index for index, image in enumerate(pixels) if image is None]
        parts = []
        if images:
            parts.append(self._embed_images(torch.stack([pixels[index] for index in images])))
        if texts:
            contexts = [requests[index].context for index in texts]
            queries = [one if isinstance(one, str) else "\n".join(turn.text for turn in one) for one in contexts]
            embedded, cuts = self._embed_texts(queries)
            parts.append(embedded)
        order = torch.tensor([*images, *texts]).argsort()
        return torch.cat(parts)[order], dict(zip(texts, cuts, strict=True)) if texts else {}

    def _embed_labels(self, labels: Labels) -> tuple[Any, int]:
        """One unit vector for each label, cached by label set, and how many tokens of its texts were cut."""
        import torch

        cached = self._candidates.get(labels.digest)
        if cached is None:
            if labels.media:
                parts = []
                for start in range(0, len(labels.media), self.batch_size):
                    images = [self._load_image(media) for media in labels.media[start : start + self.batch_size]]
                    parts.append(self._embed_images(torch.stack(images)))
                cached = torch.cat(parts), 0
            else:
                cached = self._embed_classes(labels)
            self._candidates[labels.digest] = cached
            while len(self._candidates) > CACHED_LABEL_SETS:
                self._candidates.popitem(last=False)
        return cached

    def _embed_classes(self, labels: Labels) -> tuple[Any, int]:
        import torch

        templates = labels.templates or (self.prompt_template,)
        texts = [template.replace("{c}", name) for name in labels.texts or labels.names for template in templates]
        embedded, cuts = self._embed_texts(texts)
        mean = embedded.reshape(len(labels), len(templates), -1).mean(dim=1)
        return torch.nn.functional.normalize(mean, dim=1), sum(cuts)

    def _embed_images(self, pixels: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self._parts[0].encode_image(pixels.to(self._device, getattr(torch, self.dtype)), normalize=True)

    def _embed_texts(self, texts: Sequence[str]) -> tuple[Any, list[int]]:
        """Unit vectors, and how many tokens of each text were cut."""
        import torch

        model, _, tokenizer = self._parts
        positions = int(getattr(model, "context_length", None) or self.max_context_length)
        length = min(self.max_context_length, positions)
        cuts = [max(0, _token_count(tokenizer, text) - length) for text in texts]
        warning = f"some texts are longer than the context of {length} tokens and were cut"
        if any(cuts) and warning not in self._warnings:
            self._warnings.append(warning)
            warn(warning)
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), TEXT_BATCH):
                ids = tokenizer(list(texts[start : start + TEXT_BATCH]), context_length=length)
                padded = torch.nn.functional.pad(ids, (0, positions - ids.shape[1]))  # with zeros, as open_clip pads
                parts.append(model.encode_text(padded.to(self._device), normalize=True))
        return torch.cat(parts), cuts


def _token_count(tokenizer: Any, text: str) -> int:
    """With the start and end tokens, which transformers' tokenizers add and open_clip's does not."""
    if hasattr(tokenizer, "encode"):
        return len(tokenizer.encode(text)) + 2
    inner = getattr(tokenizer, "tokenizer", None)
    return len(inner(text)["input_ids"]) if inner is not None else 0
