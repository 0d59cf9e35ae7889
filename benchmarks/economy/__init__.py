"""What of its time a GPU works while proposers think for half a minute each, and what more GPUs bring."""
