"""What searches teach, pure: from judged candidates to lessons, and from lessons and kernels back into prompts.

    findings = distil(scene, attempts)          # at a job's end: what changed, and what it did
    standing_of(evidence)                       # tentative, confirmed or quarantined, with the pooled effect
    recall(question, lookup)                    # before a proposal: what is worth knowing, ranked, some of it withheld
    lift(shown, withheld)                       # later: what showing it was worth, with an interval

Rows are read and written by `db.knowledge`, `db.lessons` and `db.uplift`; the worker carries data between the two.
Memory that only grows teaches searches to repeat what once looked good (arXiv 2509.26354), hence the three guards:
a lesson needs two independent jobs, contradictions are quarantined, and what is shown is measured against what is not.
"""
