"""The finalist's certificate: system checks beyond the judgement, one JSON document, and a page made from it."""
