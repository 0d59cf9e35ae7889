"""What goes into an exported package word for word: torch and the standard library, nothing of ours.

`api.packaging` puts these files beside the candidate, the reference, the certificates and `package.json`, so imports
here are relative. In this folder they cannot be imported: what they are about is missing.
"""
