"""Engine versions and ranges."""

from __future__ import annotations

import pytest

from shardwright.errors import UsageError
from shardwright.facts.versions import parse_version, version_in


@pytest.mark.parametrize(
    ("version", "ranges", "inside"),
    [
        ("0.30.0", ">=0.30,<0.33", True),
        ("0.30", ">=0.30.0", True),
        ("0.29.9", ">=0.30,<0.33", False),
        ("0.33.0", ">=0.30,<0.33", False),
        ("0.9.0", ">=0.30", False),  # as text 0.9 would be above 0.30
        ("0.100.0", "<0.33", False),
        ("1.0.0", ">0.33", True),
        ("0.30.0+cpu", "==0.30.0", True),
        ("0.30.0rc1", ">=0.30", True),
        ("0.30.1", "==0.30", False),
        ("0.30.0", "", True),
        ("0.30.0", " >= 0.28 , <= 0.30 ", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, ranges: str, inside: bool):
    assert version_in(version, ranges) is inside


@pytest.mark.parametrize("text", ["", "30", "latest", "v0.30.0", "0.x.0", "0.\u0663.0", f"0.{'9' * 5000}", "0.30\n.1"])
def test_what_is_no_version_is_refused(text: str):
    with pytest.raises(UsageError, match="is not an engine version"):
        parse_version(text)


@pytest.mark.parametrize("ranges", ["0.30", "~=0.30", ">=", ">=latest", ">=0.30;<0.33"])
def test_what_is_no_range_is_refused(ranges: str):
    with pytest.raises(UsageError, match="is not a version range"):
        version_in("0.30.0", ranges)
