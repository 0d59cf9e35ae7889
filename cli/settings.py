"""The variables of the environment that say where the service is and who asks."""

from __future__ import annotations

from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8080"
URL_VARIABLE: Final = "KERNELWRIGHT_URL"
KEY_VARIABLE: Final = "KERNELWRIGHT_KEY"
"""Holds the API key that requests are sent with."""
