"""Tiny random multimodal models, made without the hub: weights, processor, chat template and tokenizer in one folder.

The chat templates are those of the real models. Weights have a large variance, so that another image or audio clip changes
the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TEXT = (
    "the quick brown fox jumps over the lazy dog . what is in this picture ? a cat , a dog or a ship ; yes no A B C D\n"
    "user assistant USER ASSISTANT User Assistant : what do you hear ? it is 42 , 7 or 1234\n"
)
WEIGHTS_STD = 0.25
CONTEXT = 512
AUDIO_RATE = 16_000
AUDIO_WINDOW_S = 1

LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
IDEFICS3_TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'].capitalize() }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
GEMMA3_TEMPLATE = (
    "<s>{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "<start_of_turn>{{ role }}\n{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
QWEN_VL_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_llava(folder: Path, **language: Any) -> Path:
    """Square images of 32 pixels in 16 patches, through CLIP's tower and a Llama that starts every text with BOS.

    `language` are settings of the Llama.
    """
    from transformers import CLIPImageProcessor, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

    tokenizer = make_tokenizer(["<image>"], bos=True)
    image_processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )
    tower = CLIPVisionConfig(**_tower(), image_size=32, patch_size=8, projection_dim=16)
    config = LlavaConfig(
        vision_config=tower,
        text_config=_llama(tokenizer, **language),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    return _save(folder, LlavaForConditionalGeneration, config, processor)


def make_idefics3(folder: Path) -> Path:
    """Images of any shape, the larger ones split into tiles of 32 pixels beside the whole; four tokens each."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessor, Idefics3Processor

    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    around = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    tokenizer = make_tokenizer([*around, *tiles], bos=True)
    image_processor = Idefics3ImageProcessor(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    processor = Idefics3Processor(image_processor, tokenizer, image_seq_len=4, chat_template=IDEFICS3_TEMPLATE)
    config = Idefics3Config(
        vision_config={**_tower(), "image_size": 32, "patch_size": 8},
        text_config=_llama(tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    return _save(folder, Idefics3ForConditionalGeneration, config, processor)


def make_gemma3(folder: Path) -> Path:
    """Four tokens an image, which see each other in both directions."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor

    names = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer([*names.values(), "<start_of_turn>", "<end_of_turn>"], bos=True)
    tokenizer._set_model_specific_special_tokens(special_tokens=names)
    image_processor = Gemma3ImageProcessor(size={"height": 32, "width": 32})
    processor = Gemma3Processor(image_processor, tokenizer, image_seq_length=4, chat_template=GEMMA3_TEMPLATE)
    config = Gemma3Config(
        vision_config={**_tower(), "image_size": 32, "patch_size": 8},
        text_config={**_language(tokenizer), "head_dim": 8, "sliding_window": CONTEXT},
        mm_tokens_per_image=4,
        **{f"{name}_index": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()},
    )
    return _save(folder, Gemma3ForConditionalGeneration, config, processor)


def make_qwen2_vl(folder: Path) -> Path:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor

    tower = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2}
    return _qwen_vl(folder, Qwen2VLProcessor, Qwen2VLConfig, Qwen2VLForConditionalGeneration, tower)


def make_qwen2_5_vl(folder: Path) -> Path:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

    tower: dict[str, Any] = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32}
    tower |= {"window_size": 16, "fullatt_block_indexes": [1]}
    return _qwen_vl(folder, Qwen2_5_VLProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, tower)


def make_qwen3_vl(folder: Path) -> Path:
    """Whose first layer of language also gets features of the tower's first layer."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    tower: dict[str, Any] = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32}
    tower |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return _qwen_vl(folder, Qwen3VLProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration, tower)


def make_qwen2_audio(folder: Path) -> Path:
    """Audio of up to one second at 16 kHz, 25 tokens a second."""
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    tokenizer = make_tokenizer(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|im_start|>", "<|im_end|>"], bos=False)
    feature_extractor = WhisperFeatureExtractor(feature_size=16, sampling_rate=AUDIO_RATE, chunk_length=AUDIO_WINDOW_S)
    processor = Qwen2AudioProcessor(feature_extractor, tokenizer)  # has a default template
    tower = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 16}
    config = Qwen2AudioConfig(
        audio_config={**tower, "model_type": "qwen2_audio_encoder", "max_source_positions": 50 * AUDIO_WINDOW_S},
        text_config=Qwen2Config(**_language(tokenizer)),
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return _save(folder, Qwen2AudioForConditionalGeneration, config, processor)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "llava": make_llava,
    "idefics3": make_idefics3,
    "qwen2_vl": make_qwen2_vl,
    "qwen2_5_vl": make_qwen2_5_vl,
    "qwen3_vl": make_qwen3_vl,
    "qwen2_audio": make_qwen2_audio,
}
MORE_MAKERS: dict[str, Callable[[Path], Path]] = {"gemma3": make_gemma3}


def byte_level(text: str, size: int, specials: Sequence[str] = (), *, bos: bool) -> Any:
    """Byte-level BPE of a text; with `bos` every text starts with <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>", *specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 3, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def make_tokenizer(specials: Sequence[str], *, bos: bool) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level(TEXT, 420, ["<pad>", *specials], bos=bos),
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=list(specials),
    )


def _qwen_vl(folder: Path, processor_class: Any, config_class: Any, model_class: Any, tower: dict[str, Any]) -> Path:
    """Images and frames of any shape in patches of 4 pixels, four of which make a token; two frames make one step."""
    from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    vision = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer = make_tokenizer([*vision, "<|im_start|>", "<|im_end|>"], bos=False)
    patches = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    size = {"shortest_edge": 16 * 16, "longest_edge": 32 * 32}
    processor = processor_class(
        Qwen2VLImageProcessor(size=size, **patches),
        tokenizer,
        Qwen2VLVideoProcessor(size=size, cap_pixels_per_frame=False, **patches),
        chat_template=QWEN_VL_TEMPLATE,
    )
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>") for name in ("image", "video")}
    ids |= {f"vision_{end}_token_id": tokenizer.convert_tokens_to_ids(f"<|vision_{end}|>") for end in ("start", "end")}
    config = config_class(
        vision_config={**tower, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2},
        text_config={**_language(tokenizer), "rope_parameters": rope},
        **ids,
    )
    return _save(folder, model_class, config, processor)


def _tower() -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def _language(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _llama(tokenizer: Any, **language: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**{**_language(tokenizer), **language})


def _save(folder: Path, model_class: Any, config: Any, processor: Any) -> Path:
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = model_class(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=WEIGHTS_STD)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
