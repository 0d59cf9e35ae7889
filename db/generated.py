"""Generated code: what the judge read of a candidate on its way to the device, by kind."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.generated_models import CandidateCode, CodeText
from db.storable import storable_text
from db.vocabulary import CodeKind


@dataclass(frozen=True, slots=True)
class Listed:
    """One kind of a candidate's code, without the text."""

    kind: CodeKind
    sha256: str
    bytes: int


def store(session: Session, candidate_id: str, code: Mapping[str, str]) -> None:
    """Keep the code of a candidate, in the transaction that stores its evaluation.

    A text that is known is touched and not only left alone: whoever deletes old texts meanwhile then sees that it is
    used. In the order of their digests, so that two that store the same texts wait for each other and do not deadlock.
    """
    texts = {kind: storable_text(text).encode() for kind, text in code.items()}
    digests = {kind: hashlib.sha256(text).hexdigest() for kind, text in texts.items()}
    for kind in sorted(digests, key=digests.__getitem__):
        text = texts[kind]
        row = {"sha256": digests[kind], "size": len(text), "compressed": zlib.compress(text)}
        touched = {"used_at": func.now()}
        session.execute(insert(CodeText).values(row).on_conflict_do_update(index_elements=["sha256"], set_=touched))
        session.add(CandidateCode(candidate_id=candidate_id, kind=CodeKind(kind).value, sha256=digests[kind]))
    session.flush()


def listed(session: Session, candidate_id: str) -> list[Listed]:
    """What is kept of a candidate's code, in the order in which a compiler makes it."""
    query = (
        select(CandidateCode.kind, CandidateCode.sha256, CodeText.size)
        .join(CodeText, CodeText.sha256 == CandidateCode.sha256)
        .where(CandidateCode.candidate_id == candidate_id)
    )
    found = [Listed(CodeKind(kind), sha256, size) for kind, sha256, size in session.execute(query)]
    return sorted(found, key=lambda each: list(CodeKind).index(each.kind))


def text_of(session: Session, sha256: str) -> str:
    """A text by its digest."""
    return zlib.decompress(session.get_one(CodeText, sha256).compressed).decode()
