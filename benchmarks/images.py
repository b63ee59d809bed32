"""Questions about images: how much faster is an image that is encoded and computed once, and are scores the same?

    python benchmarks/images.py [--images 8] [--questions 3] [--layers 8] [--device cpu] [--json out.json]

Makes a small LLaVA of random weights with the token counts of a real one: 576 tokens an image (24 x 24 patches of 14
pixels), questions of about 40 tokens with four answers of about 6. Every image has `--questions` questions, so an image
belongs to 12 requests, as in benchmarks of several questions an image. Compares, after one warm-up each, plain
transformers (a batch of the four answers of a question, padded), mill without sharing (exact=true) and mill; prints seconds,
ratios, the tokens that were computed, and the largest difference of a token's log-probability. Generation: the questions
alone, 16 tokens each.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from vlm import LLAVA_TEMPLATE, make_tokenizer

from mill.api.message import IMAGE, Media, Message
from mill.api.model import StreamContext, run_requests
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request, generation_options
from mill.models.hf.model import TransformersModel

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "what",
    "is",
    "in",
    "this",
    "image",
    "cat",
    "ship",
    "yes",
    "no",
    "hear",
    "it",
]
PIXELS, PATCH, NEW_TOKENS = 336, 14, 16


def make_model(folder: Path, layers: int) -> None:
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    tokenizer = make_tokenizer(["<image>"], bos=True)
    image_processor = CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size={"height": PIXELS, "width": PIXELS})
    processor = LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )
    tower = CLIPVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=4,
        image_size=PIXELS,
        patch_size=PATCH,
    )
    language = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1408, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    token = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=tower, text_config=language, image_token_index=token, vision_feature_layer=-2)
    torch.manual_seed(0)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)


def make_image(seed: int) -> Image.Image:
    colours = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((480, 360), Image.Resampling.BICUBIC)


def text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(WORDS, k=words))


def questions(images: int, each: int) -> list[tuple[Image.Image, str, list[str]]]:
    generator = random.Random(0)
    drawn = [make_image(seed) for seed in range(images)]
    return [
        (image, text(generator, 30), [f" {text(generator, 5)}" for _ in range(4)]) for image in drawn for _ in range(each)
    ]


class Plain:
    """Transformers alone: the answers of a question in one padded batch."""

    def __init__(self, folder: Path, device: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor = AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.padding_side = "right"
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().to(device)

    def prompt(self, question: str) -> str:
        content = [{"type": "image"}, {"type": "text", "text": question}]
        turns = [{"role": "user", "content": content}]
        return str(self.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def scores(self, image: Image.Image, question: str, answers: list[str]) -> list[float]:
        prompt, tokenizer = self.prompt(question), self.processor.tokenizer
        lengths = [len(tokenizer(answer, add_special_tokens=False)["input_ids"]) for answer in answers]
        inputs = self.processor(
            text=[prompt + answer for answer in answers], images=[[image]] * len(answers), return_tensors="pt", padding=True
        ).to(self.model.device)
        with torch.inference_mode():
            logprobs = self.model(**inputs).logits[:, :-1].log_softmax(-1)
        chosen = logprobs.gather(2, inputs["input_ids"][:, 1:, None])[..., 0].double()
        ends = (inputs["attention_mask"].sum(dim=1) - 1).tolist()
        rows = zip(chosen, ends, lengths, strict=True)
        return [float(row[end - length : end].sum()) for row, end, length in rows]

    def answer(self, image: Image.Image, question: str) -> str:
        inputs = self.processor(text=[self.prompt(question)], images=[[image]], return_tensors="pt").to(self.model.device)
        out = self.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2)
        return str(self.processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def message(image: Image.Image, question: str) -> tuple[Message]:
    return (Message("user", (Media(IMAGE, image), question)),)


def timed(call: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    found = call()
    return time.perf_counter() - started, found


def measure(folder: Path, images: int, each: int, device: str) -> dict[str, Any]:
    rows = questions(images, each)
    scored = [Request(LOGLIKELIHOOD, message(image, text), answer) for image, text, answers in rows for answer in answers]
    options = generation_options(max_gen_toks=NEW_TOKENS)
    open_ended = [Request(GENERATE, message(image, text), options=options) for image, text, _ in rows]
    plain = Plain(folder, device)
    plain.scores(*rows[0])
    seconds, texts, scores = {}, {}, {}
    seconds["plain transformers"], found = timed(lambda: [plain.scores(*one) for one in rows])
    scores["plain transformers"] = [score for row in found for score in row]
    generating = {}
    generating["plain transformers"], texts["plain transformers"] = timed(lambda: [plain.answer(*one[:2]) for one in rows])
    computed = 0
    for name, exact in (("mill, exact=true", True), ("mill", False)):
        model = TransformersModel(path=str(folder), dtype="float32", device_map=device, exact=exact)
        model.loglikelihood(scored[:4])  # loads, probes and warms up
        context = StreamContext()
        streamed = lambda model=model, context=context: dict(run_requests(model, LOGLIKELIHOOD, scored, context))  # noqa: E731
        seconds[name], answers = timed(streamed)
        scores[name] = [answers[request].score for request in scored]
        computed = context.tokens.computed
        generating[name], answers = timed(lambda model=model: model.generate_until(open_ended))
        texts[name] = [answer.text for answer in answers]
    tokens = max(answer.output_tokens or 1 for answer in TransformersModel.loglikelihood(model, scored[:4]))
    return {
        "images": images,
        "requests": len(scored),
        "seconds": seconds,
        "generation_seconds": generating,
        "computed_tokens": computed,
        "difference_a_token": max(
            abs(ours - theirs) / tokens for ours, theirs in zip(scores["mill"], scores["plain transformers"], strict=True)
        ),
        "texts_equal": texts["mill"] == texts["plain transformers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), given.layers)
        found = measure(Path(folder), given.images, given.questions, given.device)
    print(f"{found['requests']} requests on {found['images']} images; {found['computed_tokens']:,} tokens computed by mill")
    for title, key in (("scoring", "seconds"), ("generation", "generation_seconds")):
        for name, seconds in found[key].items():
            print(f"{title:11} {name:20} {seconds:8.2f} s   {seconds / found[key]['mill']:5.1f}x")
    difference, equal = found["difference_a_token"], found["texts_equal"]
    print(f"largest difference to plain transformers: {difference:.1e} a token; texts equal: {equal}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
