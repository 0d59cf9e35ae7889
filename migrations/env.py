"""How Alembic reaches the database, and how it stays out of the way of the code that runs meanwhile.

One migrator at a time (an advisory lock), one transaction for each migration, and no waiting behind a long lock: a
migration that cannot have its table within 4 s fails and is run again, rather than block every query queued behind it.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

from db.settings import get_settings, sqlalchemy_url
from db.tables import Base

LOCK_TIMEOUT_S = 4
STATEMENT_TIMEOUT_S = 5


def url() -> str:
    """The database to migrate: what the caller set, else the settings. Raises MissingDatabaseUrl."""
    given = context.config.get_main_option("sqlalchemy.url")
    return sqlalchemy_url(given) if given else get_settings().sqlalchemy_url


def run_offline() -> None:
    """Print the SQL (`alembic upgrade head --sql`)."""
    context.configure(
        url="postgresql+psycopg://",
        target_metadata=Base.metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Migrate the database, or compare it with the models."""
    engine = _engine()
    with engine.connect() as connection:
        # Held by the session and not by a transaction: there is one transaction for each migration. Waiting for another
        # migrator is no error, so the timeouts come after it.
        connection.execute(text("SELECT pg_advisory_lock(hashtextextended('kernelwright migrations', 0))"))
        connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'"))
        connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'"))
        connection.commit()
        try:
            _migrate(connection)
        finally:
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(hashtextextended('kernelwright migrations', 0))"))
            connection.commit()
    engine.dispose()


def _engine() -> Engine:
    return create_engine(url(), poolclass=NullPool, connect_args={"application_name": "kernelwright migrate"})


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
