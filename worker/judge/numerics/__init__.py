"""Right or wrong: fp64 truth, thresholds calibrated from both sides, comparisons slice by slice."""
