"""The formats of others: data sets of candidates, FlashInfer Trace, SOL-ExecBench, KernelBench (docs/exchange.md)."""
