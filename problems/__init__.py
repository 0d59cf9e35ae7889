"""The bundled suite: one file per problem, read by `problems.catalog` and never imported by it."""
