"""The trusted referee: problems, inputs, fp64 truth, tolerances, the clock and the verdict. Needs nothing but torch."""
