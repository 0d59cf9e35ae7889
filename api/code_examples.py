"""The OpenAPI examples of generated code, and what each kind is called."""

from __future__ import annotations

from typing import Any

from db.vocabulary import CodeKind

NAMES = {
    CodeKind.TTGIR: "TTGIR",
    CodeKind.LLVM: "LLVM code",
    CodeKind.PTX: "PTX",
    CodeKind.SASS: "SASS",
    CodeKind.ASSEMBLY: "assembly",
}

CODE = {
    CodeKind.TTGIR: "// kernel scaled, for small\nmodule {\n  tt.func public @scaled(%x: !tt.ptr<f32>) { ... }\n}\n",
    CodeKind.LLVM: "; kernel scaled, for small\ndefine ptx_kernel void @scaled(ptr addrspace(1) %0) { ... }\n",
    CodeKind.PTX: "// kernel scaled, for small\n.version 8.7\n.target sm_90a\n.visible .entry scaled( ... )\n",
    CodeKind.SASS: "// kernel scaled, for small\n.text.scaled:\n  /*0000*/   LDC R1, c[0x0][0x28] ;\n",
    CodeKind.ASSEMBLY: "# cpp source 1 of 1, flags: none\n0000000000001130 <scaled>:\n"
    "    1130:\tvmulps (%rdi,%rax,1),%ymm1,%ymm0\n",
}

LISTED: list[dict[str, Any]] = [
    {
        "kind": "assembly",
        "bytes": 4188,
        "sha256": "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5",
    }
]
