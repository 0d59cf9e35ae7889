"""What GPUs say of themselves, beside what their locks say: a device that is held need not run a kernel."""

from __future__ import annotations

import csv
import shutil
import subprocess
import threading
from collections import defaultdict
from statistics import fmean
from types import TracebackType
from typing import Self

_QUERY = ("--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits", "--loop=1")


class Utilisation:
    """Asks nvidia-smi once a second until it is closed; knows nothing where there is none."""

    def __init__(self) -> None:
        self._percent: defaultdict[str, list[float]] = defaultdict(list)
        self._smi: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._listen, name="utilisation", daemon=True)

    def __enter__(self) -> Self:
        path = shutil.which("nvidia-smi")
        if path is not None:
            self._smi = subprocess.Popen([path, *_QUERY], stdout=subprocess.PIPE, text=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._smi is not None:
            self._smi.terminate()
            self._thread.join()
            self._smi.wait()

    def shares(self) -> dict[str, float]:
        """Of each GPU: in which share of the time it ran a kernel, as its driver counts."""
        return {uuid: fmean(percents) / 100 for uuid, percents in sorted(self._percent.items())}

    def _listen(self) -> None:
        assert self._smi is not None and self._smi.stdout is not None
        with self._smi.stdout as rows:
            for row in csv.reader(rows, skipinitialspace=True):
                if len(row) == 2 and row[1].isdigit():
                    self._percent[row[0]].append(float(row[1]))
