"""The brain of the service, pure: it reads data and answers with data, and does no I/O but to ask a language model.

Read in this order: `types` (the nouns), `advance` (the main loop), `stopping` and `policy` (when to end, what to try),
`policies` (the other ways to try it), `proposing` (the interface of every proposer), then `llm` (prompts, provider,
answers) and `tuning` (tunables). What a prompt may know besides: `facts`, found by `retrieval`.
"""
