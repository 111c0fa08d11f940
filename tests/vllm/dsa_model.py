"""The tiny GLM with sparse attention as a folder that an engine can serve: weights, and a tokenizer of its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from shardwright.probes.score_text import text

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
"""For PYTHONPATH: sparse attention on the CPU engine."""

_WRITER = Path(__file__).with_name("dsa") / "checkpoint.py"


def write_model(folder: Path, *, quantised: bool = False) -> Path:
    """Write the model into `folder`. As `quantised`, the loader accepts that orphan layers have no indexer weights."""
    options = ["--quantised"] if quantised else []
    subprocess.run([sys.executable, str(_WRITER), str(folder), *options], check=True)
    _add_tokenizer(folder)
    return folder


def _add_tokenizer(model: Path) -> None:
    """A tokenizer whose ids all lie in the model's vocabulary of 512."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([text(number, 100, 1) for number in range(4)], trainer)
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(model)
