"""The pages of docs/reference: written from the code, so that they cannot say anything else than it does."""
