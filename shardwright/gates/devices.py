"""Which cards the ranks of this host get, and whether the places that choose them agree."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from shardwright.facts.facts import Facts
from shardwright.facts.host import Gpu
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, local_ranks, value_of, whole_number
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "device-selection"

_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_INNER = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_FLAG = "--device-ids"
_CDI = "nvidia.com/gpu="
_REQUEST_KEYS = ("driver", "count", "device", "capabilities", "options")
_NO_CARDS = ("void", "none", "")
# No host has more; a count beyond it is not spelled out card by card.
_MOST_CARDS = 1000


class CardRequest(Struct, frozen=True):
    """What `--gpus` asks for: so many cards, those of `devices`, or with neither all. `problem`: Docker refuses it."""

    count: int | None = None
    devices: tuple[str, ...] = ()
    problem: str = ""


def card_request(gpus: str) -> CardRequest:
    """A value of `--gpus` as Docker reads it (docker/cli opts/gpus.go): one line of CSV with `key=value` fields, or a
    bare count; one card where neither a count nor a device is named.
    """
    given: dict[str, str] = {}
    for quoted, plain in re.findall(r'"([^"]*)"|([^",]+)', gpus):
        field = quoted or plain
        key, equals, value = field.partition("=")
        key, value = (key, value) if equals else ("count", key)
        if key not in _REQUEST_KEYS:
            return CardRequest(problem=f"{field!r} is no part of a card request")
        if key == "count" and value != "all" and whole_number(value) is None:
            return CardRequest(problem=f"{value!r} is no number of cards")
        if key in given:
            return CardRequest(problem=f"it names {key} twice")
        given[key] = value
    if "count" in given and "device" in given:
        return CardRequest(problem="it names devices and a count, since the comma stands outside of quotes")
    if "device" in given:
        return CardRequest(devices=_parts(given["device"]))
    return CardRequest(count=whole_number(given.get("count", "1"))) if given else CardRequest(problem="it is empty")


def chosen_cards(deployment: Deployment, have: int | None = None) -> tuple[int, ...] | None:
    """Numbers on the host of the cards that a layout chooses among `have`, in its order.

    A container numbers its cards from 0, so what is chosen inside is a choice among those that were passed in. None
    where cards are chosen by names that say nothing of their numbers, and, without `have`, where none are chosen.
    """
    cards: Sequence[int] | None = None if have is None else range(have)
    for chosen in (_container_choice(deployment), _inner_choice(deployment)):
        if chosen is None:
            continue
        places = [place for part in chosen if (place := whole_number(part)) is not None]
        if len(places) < len(chosen):
            return None
        cards = places if cards is None else [cards[place] for place in places if place < len(cards)]
    return None if cards is None else tuple(cards)


def used_cards(deployment: Deployment, facts: Facts) -> tuple[tuple[int, Gpu], ...] | None:
    """The cards that the ranks of this host take, each with its number on the host, in the order of the ranks.

    None where nobody looked at the cards, or where they are chosen by names that say nothing of their numbers.
    """
    gpus = facts.gpus
    cards = None if gpus is None else chosen_cards(deployment, len(gpus))
    if gpus is None or cards is None:
        return None
    return tuple((card, gpus[card]) for card in cards[: local_ranks(deployment)])


def check_device_selection(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`device-selection`: the devices that are chosen are enough, distinct, there, and chosen in one place."""
    inner = {name: parts for name in (*_INNER, _FLAG) if (parts := _asked(deployment, name)) is not None}
    findings = []
    if len(inner) > 1:
        text = f"devices are chosen twice: {' and '.join(inner)}"
        why = "the second choice counts within the first, not on the host"
        findings.append(_refused(text, f"keep {next(iter(inner))} only", why))
    outer = _outer_choices(deployment)
    cdi = _cdi_choice(deployment)
    if cdi and deployment.runtime == "docker":
        findings += _selection("container.devices", cdi, deployment)
    for name, devices in {**outer, **inner}.items():
        findings += _selection(name, devices, deployment)
    findings += _container(deployment, outer.get(_CONTAINER)) + _nothing_passed(deployment, facts)
    return findings + _beyond(deployment, inner, facts) + _unlike_cards(deployment, inner, facts)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _asked(deployment: Deployment, name: str) -> tuple[str, ...] | None:
    """Devices that a variable or the flag names; None where it is absent. CUDA stops at the first that is none."""
    pair = env_of(deployment, name)
    text = value_of(deployment, name) if name == _FLAG else pair.value if pair else None
    if text is None:
        return None
    parts = _parts(text)
    return parts[: parts.index("-1")] if "-1" in parts else parts


def _outer_choices(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    """What the container's own variable chooses, where it chooses: neither all cards, nor none beside `--gpus`."""
    pair = env_of(deployment, _CONTAINER)
    value = pair.value.strip() if pair else "all"
    if value in _NO_CARDS:
        return {} if deployment.container.gpus else {_CONTAINER: ()}
    return {} if value == "all" else {_CONTAINER: _parts(value)}


def _container_choice(deployment: Deployment) -> tuple[str, ...] | None:
    """The host's cards that the container gets; None: all of them. `--gpus` wins over the variable."""
    if deployment.runtime != "docker":
        return None
    if deployment.container.gpus is None:
        return _cdi_choice(deployment) or _outer_choices(deployment).get(_CONTAINER)
    request = card_request(deployment.container.gpus)
    if request.count is not None:
        return tuple(str(number) for number in range(min(request.count, _MOST_CARDS)))
    return request.devices or None


def _cdi_choice(deployment: Deployment) -> tuple[str, ...]:
    """Cards that `container.devices` names one by one; empty where it names none, or all."""
    named = [name.removeprefix(_CDI) for name in deployment.container.devices if name.startswith(_CDI)]
    return () if "all" in named else tuple(named)


def _inner_choice(deployment: Deployment) -> tuple[str, ...] | None:
    """What the engine itself chooses among the cards that it sees."""
    return next((parts for name in (*_INNER, _FLAG) if (parts := _asked(deployment, name)) is not None), None)


def _selection(name: str, devices: tuple[str, ...], deployment: Deployment) -> list[Finding]:
    ranks = local_ranks(deployment)
    odd = [part for part in devices if not _is_device(part)]
    if odd:
        return [_refused(f"{name} names {odd[0]!r}, which is no device", f"write numbers with commas: {name}=0,1")]
    if len(set(devices)) < len(devices):
        text = f"{name} names a device twice: {','.join(devices)}"
        return [_refused(text, f"correct {name}", "two ranks cannot share one card")]
    if deployment.platform != "cpu" and len(devices) < ranks:
        text = f"{name} gives {len(devices)} devices, but {ranks} ranks run on this host"
        return [_refused(text, f"name {ranks} devices, or lower TP or PP")]
    if ranks > 1 and any(_is_slice(part) for part in devices):
        text = f"{name} names MIG slices, and {ranks} ranks run on this host"
        return [_refused(text, "give whole cards, or TP=1 and PP=1", "CUDA shows a process one MIG slice only")]
    return []


def _is_slice(part: str) -> bool:
    return part.startswith("MIG-") or ":" in part


def _is_device(part: str) -> bool:
    numbers = part.split(":")
    return part.startswith(("GPU-", "MIG-")) or all(whole_number(number) is not None for number in numbers)


def _container(deployment: Deployment, variable: tuple[str, ...] | None) -> list[Finding]:
    """What `container.gpus` asks for reads, is enough, and is what the variable says too."""
    if deployment.runtime != "docker" or deployment.container.gpus is None:
        return []
    request, ranks = card_request(deployment.container.gpus), local_ranks(deployment)
    if request.problem:
        text = f"container.gpus {deployment.container.gpus!r}: {request.problem}"
        return [_refused(text, """write gpus: '"device=0,1"', gpus: all, or a number""")]
    if request.devices:
        findings = _selection("container.gpus", request.devices, deployment)
        if findings:
            return findings
    elif request.count is not None and request.count < ranks:
        text = f"container.gpus passes {request.count} cards, but {ranks} ranks run on this host"
        return [_refused(text, f"pass {ranks} cards, or lower TP or PP")]
    if variable is None or set(variable) == set(request.devices):
        return []
    text = f"{_CONTAINER} and container.gpus choose different cards"
    why = "Docker sets the variable anew from --gpus, so the cards of the variable are not the ones that run"
    cards = ",".join(variable)
    return [_refused(text, f"""write container: {{gpus: '"device={cards}"'}} and remove the variable""", why)]


def _nothing_passed(deployment: Deployment, facts: Facts) -> list[Finding]:
    """A container that is given no card by anybody; NVIDIA's runtime gives some by itself where it is the default."""
    container, runtimes = deployment.container, facts.host.runtimes
    if deployment.runtime != "docker" or deployment.platform != "cuda":
        return []
    # Who sets the variable knows of the runtime that reads it.
    if container.gpus is not None or container.devices or container.privileged or env_of(deployment, _CONTAINER):
        return []
    text, fix = "container.gpus is not set, and no device is passed", "write container: {gpus: all}"
    if runtimes and "nvidia" not in runtimes:
        return [_refused(text, fix, "the container gets no card, and the engine stops with 'no CUDA-capable device'")]
    why = "the container gets cards only where Docker's default runtime is NVIDIA's"
    return [Finding(GATE, "info", text, why=why, fix=fix)]


def _beyond(deployment: Deployment, inner: dict[str, tuple[str, ...]], facts: Facts) -> list[Finding]:
    """A container numbers its cards from 0, whatever their numbers on the host."""
    have = len(facts.gpus) if facts.gpus else None
    passed, who = have, "the host has"
    chosen = _container_choice(deployment)
    if chosen is not None:
        findings = _too_high("container.gpus" if deployment.container.gpus else _CONTAINER, chosen, have, who)
        if findings:
            return findings
        passed, who = len(chosen), "the container gets"
    return [finding for name, parts in inner.items() for finding in _too_high(name, parts, passed, who)]


def _too_high(name: str, parts: Sequence[str], have: int | None, who: str) -> list[Finding]:
    numbers = [whole_number(part) for part in parts]
    beyond = [number for number in numbers if number is not None and have is not None and number >= have]
    if not beyond:
        return []
    return [_refused(f"{name} names device {beyond[0]}, but {who} {have} cards, numbered from 0", f"correct {name}")]


def _unlike_cards(deployment: Deployment, inner: dict[str, tuple[str, ...]], facts: Facts) -> list[Finding]:
    """vLLM platforms/cuda.py log_warnings: with cards that differ, CUDA sorts them by speed, not by slot."""
    order = env_of(deployment, "CUDA_DEVICE_ORDER")
    names = sorted({gpu.name for gpu in facts.gpus or ()})
    if not inner or len(names) < 2 or (order is not None and order.value == "PCI_BUS_ID"):
        return []
    text = f"{next(iter(inner))} numbers cards that differ ({', '.join(names)}), without CUDA_DEVICE_ORDER"
    why = "CUDA numbers the fastest card 0, nvidia-smi goes by slots, and the number decides which stage a card serves"
    return [Finding(GATE, "warn", text, why=why, fix="write env: {CUDA_DEVICE_ORDER: PCI_BUS_ID}")]


def _refused(text: str, fix: str, why: str = "") -> Finding:
    return Finding(GATE, "reject", text, why=why, fix=fix)
