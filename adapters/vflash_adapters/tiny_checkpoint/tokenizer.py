"""A small byte-level BPE with Qwen2's pre-tokenizer and H3's special tokens, trained here from a few sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

MERGES = 320

# In the released order: an id is a position.
_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
_QWEN_PLAIN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
# These the release names in tokenizer_config.json alone: whoever reads tokenizer.json by itself misses them.
_H3_SPECIAL = (
    *("<d>", "</d>", "<|cutoff|>"),
    *("<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>"),
)

CORPUS = (
    "A red fox runs through the snow at dawn while soft music plays and the wind moves the trees.",
    "The camera pans slowly from left to right over the city, then the person in <Picture 1> walks to the window.",
    "Waves break on the beach; gulls call; a child laughs and the sound of the sea fills the room.",
    "Use the voice of <Audio 1> and the motion of <Video 2>, <0.2 seconds> after the first frame, 24 frames a second.",
    "Cinematic lighting, shallow depth of field, a slow dolly shot, rain on glass, thunder in the distance.",
    "She says: <d>It is late, let us go home.</d> He answers quietly and the door closes behind them.",
    "一只狐狸在雪地里奔跑，远处传来钢琴声，镜头缓缓推近，画面温暖而安静。",
)


def write_tokenizer(folder: Path, corpus: Sequence[str] = CORPUS, merges: int = MERGES) -> Mapping[str, int]:
    """Write tokenizer.json, vocab.json, merges.txt and tokenizer_config.json; return token -> id, specials included."""
    from tokenizers import AddedToken

    tokenizer = _trained(corpus, merges)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _QWEN_SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _QWEN_PLAIN])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))  # vocab.json and merges.txt
    (folder / "tokenizer_config.json").write_text(json.dumps(_config(), indent=2) + "\n")
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return ids | {token: len(ids) + place for place, token in enumerate(_H3_SPECIAL)}


def _trained(corpus: Sequence[str], merges: int):  # type: ignore[no-untyped-def]
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
    from tokenizers.models import BPE
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + merges, initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def _config() -> dict[str, object]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": [*_QWEN_SPECIAL[1:], *_H3_SPECIAL],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
