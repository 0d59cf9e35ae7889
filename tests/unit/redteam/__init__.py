"""The corpus's own machinery: verdicts, files, defused attacks."""
