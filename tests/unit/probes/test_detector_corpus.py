from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable

import pytest
from loop_corpus import Document, listed, own

from shardwright.probes.degen.detector import LoopDetector
from shardwright.probes.degen.outcomes import OutcomeClass, judge
from shardwright.probes.units import split_units

_FEWEST_OF_OTHERS = 300
_FEWEST = 400


def loops(documents: Iterable[Document]) -> list[str]:
    found = []
    for document in documents:
        loop = LoopDetector().push_all(split_units(document.text()))
        if loop is not None:
            found.append(f"{document.name} ({document.kind}): {loop}")
    return found


def test_the_list_is_long_enough_and_of_many_kinds() -> None:
    documents = listed()
    kinds = Counter(document.kind for document in documents)
    assert len(documents) + len(own()) >= _FEWEST
    assert min(kinds[kind] for kind in ("code", "prose", "json", "table", "chinese")) >= 15
    assert len({document.name for document in documents}) == len(documents)


def test_songs_tables_and_chinese_are_no_loops() -> None:
    assert loops(own()) == []


def test_documents_of_the_standard_library_are_no_loops() -> None:
    documents = [document for document in listed() if document.path and document.name.startswith("python: ")]
    assert len(documents) >= 20
    assert loops(documents[:40]) == []


@pytest.mark.slow
def test_no_document_of_the_list_is_a_loop() -> None:
    documents = listed()
    here = [document for document in documents if document.path is not None]
    missing = [document.name for document in documents if document.path is None]
    changed = sum(not document.as_drawn for document in here)
    if missing or changed:
        warnings.warn(f"{len(missing)} documents are not here: {missing[:5]}; {changed} differ", stacklevel=1)
    if len(here) < _FEWEST_OF_OTHERS:
        pytest.fail(f"only {len(here)} of {len(documents)} documents are on this machine: install the engine")
    assert loops(here) == []


@pytest.mark.slow
def test_documents_that_repeat_themselves_are_found() -> None:
    documents = [document for document in listed("repeats") if document.path is not None]
    assert len(loops(documents)) == len(documents)


@pytest.mark.slow
def test_the_end_of_any_document_repeated_is_found() -> None:
    for document in [document for document in listed() if document.path is not None][::4]:
        units = split_units(document.text())[:1500]
        for period in (7, 61, 300):
            tail = units[-period:]
            assert LoopDetector().push_all(units + tail * (200 // period + 3)) is not None, (document.name, period)


def test_own_documents_are_no_garbage() -> None:
    for document in own():
        found = judge(document.text(), "", "stop", None)
        assert found.outcome is OutcomeClass.OK, (document.name, found)
