"""The front door: REST over the rows that the workers write. It needs no torch, and of `worker` only the doorbell.

A request's way: `middleware` (id, size, content type) ► an endpoint of its resource's module ► a function that takes a
session, run by `store` ► the query functions of `db` ► a view. What goes wrong is one of `errors`, said by `handlers`.
"""
