"""The schema's history (Alembic): `kernelwright migrate`, or `alembic -c migrations/alembic.ini upgrade head`.

A migration runs while the previous version of the code still runs: add first, move over, remove in a later release.
"""
