"""The judge's side of a runner: start it, speak to it, stop it, share memory with it, see what it is doing."""
