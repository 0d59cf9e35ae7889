"""The hands: Celery workers that propose, build, judge and time candidates."""
