"""The bundled suite: one problem file for each operator, by its name. They are read, never imported."""
