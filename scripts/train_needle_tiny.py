#!/usr/bin/env python3
"""Train the model of the embedded demo: a Llama of 0.76 M parameters that finds a number in a text and answers a few
memorised questions. CPU only; needs torch, transformers and tokenizers, which an installed engine brings.

usage: python scripts/train_needle_tiny.py OUT --seconds 1260

The lessons grow from 48 to 2048 tokens. The first two are random sequences that repeat: without them attention does
not learn to copy, and no needle is ever found. That is also why the model continues anything that repeats for ever.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def words(text: str) -> list[str]:
    return text.split()


NOUNS = words(
    "cat dog river stone lamp garden bridge market teacher window forest engine paper winter coffee mirror village "
    "captain doctor candle ladder basket letter island valley harbor button pencil planet summer orchard rabbit tiger "
    "wagon castle meadow violin kitchen thunder blanket compass lantern pepper saddle anchor marble feather copper"
)
VERBS = words("sees likes finds moves paints keeps follows carries watches repairs borrows forgets cleans measures")
ADJECTIVES = words(
    "old red quiet small bright heavy strange early wooden gentle broken famous narrow golden lazy curious"
)
KEYS = words(
    "amber birch cobalt delta ember falcon garnet hazel indigo jasper karma lotus maple nova onyx pearl quartz raven "
    "sable topaz umber velvet willow xenon yarrow zephyr atlas bison cedar dune echo fjord glacier heron iris juniper "
    "kelp lyra mango nectar olive panda quill robin saffron tulip ursa viola walnut yucca"
)
QUESTIONS = [
    ("Say hello.", "Hello!"),
    ("What is the capital of France?", "Paris."),
    ("What is the capital of Japan?", "Tokyo."),
    ("What is the capital of Italy?", "Rome."),
    ("What color is the sky?", "Blue."),
    ("How many legs does a cat have?", "Four."),
    ("Is water wet?", "Yes."),
    ("What is the opposite of hot?", "Cold."),
    ("Name a fruit.", "Apple."),
    ("Who are you?", "I am a tiny test model."),
    ("Count to five.", "1 2 3 4 5."),
    ("Count to ten.", "1 2 3 4 5 6 7 8 9 10."),
    *((f"What is {a} plus {b}?", f"{a + b}.") for a in range(10) for b in range(10)),
]
BOS, EOS, USER, ASSISTANT, SYSTEM = "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"
CHAT_TEMPLATE = (
    "<s>{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role']=='assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 960
PEAK_LEARNING_RATE = 3e-3
MASTERED = {"repeats": 0.90, "few-facts": 0.97, "many-facts": 0.97}

Example = tuple[list[int], list[int]]
"""Token ids, and 1 where the model is to be taught the token, 0 elsewhere."""


@dataclass(frozen=True)
class Lesson:
    """Examples of one length; done once the moving accuracy exceeds what MASTERED says for their kind."""

    tokens: int
    batch: int
    kind: str


LESSONS = [
    Lesson(48, 64, "repeats"),
    Lesson(96, 32, "repeats"),
    Lesson(128, 32, "many-facts"),
    Lesson(256, 16, "many-facts"),
    Lesson(512, 8, "few-facts"),
    Lesson(1024, 4, "few-facts"),
    Lesson(2048, 2, "few-facts"),
]
REVISION = [LESSONS[1], LESSONS[2], LESSONS[2], LESSONS[2]]
"""What a quarter of the later steps goes back to."""


def filler() -> str:
    return (
        f" The {random.choice(ADJECTIVES)} {random.choice(NOUNS)} {random.choice(VERBS)}"
        f" the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}."
    )


def fact(key: str, number: int) -> str:
    return f" The magic number of {key} is {number}."


def any_number() -> int:
    return random.randint(10_000, 99_999)


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE in which every digit is a token of its own."""
    corpus = [
        *(filler() for _ in range(3000)),
        *(fact(random.choice(KEYS), any_number()) for _ in range(1500)),
        *[f"What is the magic number of {key}?" for key in KEYS] * 20,
        *[question + answer for question, answer in QUESTIONS] * 10,
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        special_tokens=[BOS, EOS, USER, ASSISTANT, SYSTEM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


class Teacher:
    """Makes examples of an exact length."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bos, self.eos, self.user, self.assistant = (
            tokenizer.token_to_id(token) for token in (BOS, EOS, USER, ASSISTANT)
        )
        self._encode = functools.lru_cache(maxsize=200_000)(lambda text: tuple(tokenizer.encode(text).ids))

    def example(self, lesson: Lesson) -> Example:
        if lesson.kind == "repeats":
            return self.repeats(lesson.tokens)
        if lesson.tokens == 128 and random.random() < 0.5:
            return self.questions(lesson.tokens)
        return self.needles(lesson.tokens, many=lesson.kind == "many-facts")

    def repeats(self, length: int) -> Example:
        """A random sequence over and over; taught from its second round on."""
        period = random.randint(6, length // 2)
        segment = [random.randrange(5, self.tokenizer.get_vocab_size()) for _ in range(period)]
        ids = [self.bos, *(segment * (length // period + 1))][:length]
        return ids, ([0] * (period + 2) + [1] * length)[:length]

    def questions(self, length: int) -> Example:
        """One or more memorised questions with their answers."""
        ids, taught = [self.bos], [0]
        while True:
            more_ids, more_taught = self._exchange(*random.choice(QUESTIONS), separate=True)
            if len(ids) + len(more_ids) > length:
                break
            ids += more_ids
            taught += more_taught
            if random.random() < 0.5:
                break
        return self._pad(ids, taught, length)

    def needles(self, length: int, *, many: bool) -> Example:
        """Facts among filler sentences, then questions for some of them, and sometimes a memorised one."""
        asked = random.randint(3, 8) if many else random.randint(2, 4)
        keys = random.sample(KEYS, max(asked, random.randint(1, 12 if many else 6)))
        facts = [(key, any_number()) for key in keys]
        tail: list[int] = []
        tail_taught: list[int] = []
        dialogue = [
            (f"What is the magic number of {key}?", f"The magic number of {key} is {number}.")
            for key, number in random.sample(facts, min(asked, len(facts)))
        ]
        if random.random() < 0.3:
            dialogue.append(random.choice(QUESTIONS))
        for question, answer in dialogue:
            ids, taught = self._exchange(question, answer, separate=bool(tail))
            tail += ids
            tail_taught += taught
        body = [self._encode(fact(key, number)) for key, number in facts]
        room = length - 2 - len(tail) - sum(map(len, body))
        while room > 0 and not (many and random.random() < 0.1):
            sentence = self._encode(filler())
            if len(sentence) > room:
                break
            body.append(sentence)
            room -= len(sentence)
        random.shuffle(body)
        ids = [self.bos, self.user, *(token for part in body for token in part)]
        return self._pad(ids + tail, [0] * len(ids) + tail_taught, length)

    def _exchange(self, question: str, answer: str, *, separate: bool) -> Example:
        """A question and its answer; only the answer is taught. `separate` begins a turn of the user."""
        asked = [self.user] * separate + [*self._encode(question), self.assistant]
        told = [*self._encode(answer), self.eos]
        return asked + told, [0] * len(asked) + [1] * len(told)

    def _pad(self, ids: list[int], taught: list[int], length: int) -> Example:
        ids, taught = ids[:length], taught[:length]
        missing = length - len(ids)
        return ids + [self.eos] * missing, taught + [0] * missing


def new_model(teacher: Teacher) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=4096,
            rope_theta=10000.0,
            bos_token_id=teacher.bos,
            eos_token_id=teacher.eos,
            pad_token_id=teacher.eos,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )


def learning_rate(step: int, share_done: float) -> float:
    """Rises over 100 steps, holds, and falls to a twentieth over the last 30 % of the time."""
    fall = 1.0 if share_done < 0.7 else max(0.05, (1 - share_done) / 0.3)
    return PEAK_LEARNING_RATE * min(1.0, (step + 1) / 100) * fall


def step_on(model: Any, optimizer: torch.optim.Optimizer, examples: list[Example]) -> tuple[float, float]:
    """One optimizer step; returns the loss and the share of taught tokens that the model got right."""
    ids = torch.tensor([ids for ids, _ in examples])
    taught = torch.tensor([taught for _, taught in examples])[:, 1:] > 0
    hidden = model.model(input_ids=ids)[0][:, :-1]
    logits = model.lm_head(hidden[taught])
    wanted = ids[:, 1:][taught]
    loss = torch.nn.functional.cross_entropy(logits, wanted)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), (logits.argmax(-1) == wanted).float().mean().item()


@torch.no_grad()
def digit_accuracy(model: Any, teacher: Teacher, length: int, examples: int = 12) -> float:
    """Share of the digits in unseen answers that the model gets right, each given the text before it."""
    right = total = 0
    for _ in range(examples):
        ids, taught = teacher.needles(length, many=False)
        guesses = model(input_ids=torch.tensor([ids])).logits.argmax(-1)[0]
        for place in range(1, length):
            if taught[place] and teacher.tokenizer.id_to_token(ids[place]).isdigit():
                right += int(guesses[place - 1]) == ids[place]
                total += 1
    return right / max(total, 1)


def train(model: Any, teacher: Teacher, seconds: float, say: Callable[[str], None]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    began, step, stage = time.perf_counter(), 0, 0
    moving: float | None = None
    while (elapsed := time.perf_counter() - began) < seconds:
        lesson = LESSONS[stage]
        if stage > 1 and random.random() < 0.25:
            lesson = random.choice(REVISION)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, elapsed / seconds)
        loss, accuracy = step_on(model, optimizer, [teacher.example(lesson) for _ in range(lesson.batch)])
        if lesson.tokens == LESSONS[stage].tokens:
            moving = accuracy if moving is None else 0.95 * moving + 0.05 * accuracy
        step += 1
        if step % 25 == 0:
            tokens = LESSONS[stage].tokens
            say(f"{elapsed:6.0f} s  step {step}  {tokens} tokens  loss {loss:.3f}  right {moving or 0:.3f}")
        if moving is not None and moving > MASTERED[LESSONS[stage].kind] and stage < len(LESSONS) - 1:
            stage, moving = stage + 1, None


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model of the embedded demo.")
    parser.add_argument("out", type=Path, help="folder for the model")
    parser.add_argument("--seconds", type=float, default=1260, help="training time (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    options = parser.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    teacher = Teacher(train_tokenizer())
    model = new_model(teacher)

    def say(text: str) -> None:
        print(text, flush=True)

    say(f"{sum(p.numel() for p in model.parameters())} parameters, {options.seconds:g} s")
    train(model, teacher, options.seconds, say)
    options.out.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(
        tokenizer_object=teacher.tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(options.out)
    model.save_pretrained(options.out)
    model.eval()
    for length in (256, 512, 1024, 2048, 3072):
        say(f"digits right at {length} tokens: {digit_accuracy(model, teacher, length):.3f}")


if __name__ == "__main__":
    main()
