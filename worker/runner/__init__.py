"""The untrusted side: a zygote, the sandbox, and the few lines that run inside with the candidate."""
