"""The Celery application: `celery -A worker.app worker --queues cpu --without-gossip --without-mingle`.

`kernelwright up` and `kernelwright worker` start one process for each queue and for each GPU. Here Celery's life cycle
is tied to ours: logging, the row in `workers`, and what a worker process shares among its tasks.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from db.logging import configure_logging
from db.settings import get_settings
from db.vocabulary import QUEUE_CONTROL
from worker import lifeline, metrics, registry, runtime

if TYPE_CHECKING:
    from worker.delivering import Deliverer
    from worker.reaping import Reaper

# Meant for pickled messages, which we do not accept. Candidates, the code to be feared, run confined in the runner.
warnings.filterwarnings("ignore", "You're running the worker with superuser privileges", SecurityWarning)

_main_pid = 0
_deliverer: Deliverer | None = None
_reaper: Reaper | None = None

app = Celery("kernelwright")
app.config_from_object("worker.config")


def _set_up_logging(**_: Any) -> None:
    settings = get_settings()
    configure_logging(settings.log_level, settings.log_format)


def _introduce(instance: Any, **_: Any) -> None:
    """Before the pool starts: measure the device and write the row, so that no task is timed meanwhile."""
    global _main_pid
    _main_pid = os.getpid()
    metrics.identify(str(instance.hostname))
    registry.join(tuple(instance.app.amqp.queues.consume_from))


def _ready(**_: Any) -> None:
    """Webhooks are sent, and lost work is found, by threads of the control worker."""
    global _deliverer, _reaper
    here = runtime.current()
    if QUEUE_CONTROL in here.queues:
        # Imported here: it needs what other workers do without.
        from worker import delivering, reaping

        _deliverer = delivering.start(here.settings, here.owner)
        _reaper = reaping.Reaper(here)
        _reaper.start()


def _forked(**_: Any) -> None:
    """In a fresh child of the pool: what the parent had open is the parent's."""
    lifeline.die_with_parent(_main_pid)
    runtime.forget()


def _child_ends(**_: Any) -> None:
    runtime.close()


def _stopping(**_: Any) -> None:
    registry.stopping()


def _leave(**_: Any) -> None:
    if _reaper is not None:
        _reaper.stop()
    if _deliverer is not None:
        _deliverer.stop()
    runtime.close()
    registry.leave()


signals.setup_logging.connect(_set_up_logging)
signals.celeryd_after_setup.connect(_introduce)
signals.worker_ready.connect(_ready)
signals.worker_process_init.connect(_forked)
signals.worker_process_shutdown.connect(_child_ends)
signals.worker_shutting_down.connect(_stopping)
signals.worker_shutdown.connect(_leave)
