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
    """A token for each of the model's 512 ids, and each is shown as whole characters.

    An untrained model writes halves of characters, which a usual tokenizer holds back: the answer would come in bursts.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("Ġ", " "), decoders.Replace("Ċ", "\n"), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text(number, 100, 1) for number in range(4)], trainer)
    assert tokenizer.get_vocab_size() == 512
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(model)
