"""What `kernelwright up` refuses before it starts anything."""

from __future__ import annotations

import pytest

from cli.preflight import OpenToAll, check_auth


def test_up_does_not_listen_for_others_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWRIGHT_AUTH", raising=False)
    check_auth("127.0.0.1")
    with pytest.raises(OpenToAll, match=r"0\.0\.0\.0 is an address that others reach: make a key") as refused:
        check_auth("0.0.0.0")
    assert refused.value.exit_code == 2
    monkeypatch.setenv("KERNELWRIGHT_AUTH", "required")
    check_auth("0.0.0.0")
