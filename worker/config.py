"""The Celery configuration. Celery reads it when it is first needed, so importing the app needs no settings.

Why it is so (measured on Celery 5.7): redelivery runs long tasks several times and `reject_on_worker_lost` loops for
ever on a poisonous one, so neither is what recovers work; the ledger's leases are. No results, no canvas, JSON only.
"""

from __future__ import annotations

from db import tracing
from db.settings import get_settings
from db.vocabulary import QUEUE_CONTROL
from worker.client import HARD_LIMIT_S, transport_options

tracing.check(get_settings())
broker_url = get_settings().broker_url
broker_transport_options = transport_options()
broker_connection_retry_on_startup = True
worker_cancel_long_running_tasks_on_connection_loss = False  # the lease fences; the work in hand is worth finishing

imports = ("worker.tasks",)
task_default_queue = QUEUE_CONTROL
task_serializer = "json"
accept_content = ["json"]
task_ignore_result = True
task_acks_late = True
task_reject_on_worker_lost = False
task_acks_on_failure = True
task_acks_on_timeout = True
task_time_limit = HARD_LIMIT_S
task_soft_time_limit = HARD_LIMIT_S - 30

worker_prefetch_multiplier = 1
worker_concurrency = 1
worker_max_tasks_per_child = 200
worker_soft_shutdown_timeout = 20.0
worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_send_task_events = False
