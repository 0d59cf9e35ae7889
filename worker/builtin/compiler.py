"""Compiler seeds: Inductor's own kernels for the reference, made into a self-contained candidate."""

from __future__ import annotations


class NoCompilerSeed(Exception):
    """Inductor gave nothing that can stand alone for this reference. Rely on recipes and models for it."""


def compiler_seed(problem_source: str, problem_name: str, hardware: str, language: str) -> str:
    """The source of a candidate made from Inductor's output code. Raises NoCompilerSeed."""
    raise NoCompilerSeed
