"""How NCCL reads its lists of algorithms and protocols. No gate; `nccl` asks it."""

from __future__ import annotations

_ELEMENTS = {
    "NCCL_ALGO": frozenset(("tree", "ring", "collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat")),
    "NCCL_PROTO": frozenset(("ll", "ll128", "simple")),
}
_ALL_REDUCE = "allreduce"
_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", _ALL_REDUCE)


def unread_part(name: str, value: str) -> str | None:
    """The first word of NCCL_ALGO or NCCL_PROTO that NCCL does not know; None where it knows all."""
    known = _ELEMENTS[name]
    for function, elements in _groups(value).items():
        words = [function] if function and function not in _FUNCTIONS else []
        words += [word for word in elements if word.removeprefix("^") not in known]
        if words:
            return words[0].removeprefix("^")
    return None


def chosen_for_all_reduce(name: str, value: str) -> frozenset[str]:
    """What a value of NCCL_ALGO or NCCL_PROTO leaves for an all-reduce.

    Such as `tree`, `^ring`, `allreduce:tree;broadcast:ring`.
    """
    groups = _groups(value)
    elements = groups.get(_ALL_REDUCE, groups.get("", ()))
    named = frozenset(word.removeprefix("^") for word in elements)
    if not elements or elements[0].startswith("^"):
        return _ELEMENTS[name] - named
    return named


def _groups(value: str) -> dict[str, tuple[str, ...]]:
    """Words by function of a list such as `a,b;function:c,d`; the function is empty where none is named."""
    groups = {}
    for text in value.lower().replace(" ", "").split(";"):
        function, _, elements = text.rpartition(":")
        groups[function] = tuple(part for part in elements.split(",") if part)
    return groups
