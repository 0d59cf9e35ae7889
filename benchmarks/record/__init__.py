"""The record: how much faster the bundled operators get than whatever a user could pick instead. See `__main__`."""
