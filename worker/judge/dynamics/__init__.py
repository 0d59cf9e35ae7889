"""Training dynamics: does a model train with this kernel as it trains with honest ones?

A micro transformer, its data, its optimisers and all statistics live in the judge; the candidate stays in its runner
and is called through the arena for the one operation that sits in its seat. Tolerances see one call; errors that add up
over steps (a gradient that is always a little too small, a row that never moves) show here.

    text          Zipf-distributed tokens
    model         the transformer        optimisers   SGD, momentum, AdamW, Adafactor
    seats         where a problem's operation sits             seating   and how it is called there
    honest        variants of it that differ by reduction order
    rehearsal     their runs: the null distribution
    statistics    how far a run lies from it
    check         a candidate's trial
"""
