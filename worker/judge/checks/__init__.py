"""The checks of a candidate, one module each: `check(trial)` records what it found and raises Fault on a failure.

Called by the referee in order of cost, so that most bad candidates die early:

    values         every workload and family against the fp64 truth; bias; inputs and guard zones untouched; repeats
    settings       precision flags, default types and random state are left alone
    sensitivity    every input and parameter matters as much as it does to the reference; parameters are read live
    state          running statistics move as the reference's do, and nothing else moves
    shapes         other shapes and layouts: general, specialised and refuses, or specialised and wrong
    provenance     whose code the device spent its time in
"""
