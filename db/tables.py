"""All tables: importing this registers the models of every module. For whoever needs the whole schema at once."""

from __future__ import annotations

from db import generated_models, knowledge_models, recording_models, tuning_models, webhook_models
from db.models import Base

__all__ = ["Base", "generated_models", "knowledge_models", "recording_models", "tuning_models", "webhook_models"]
