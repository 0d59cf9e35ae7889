"""The web page: what the REST endpoints answer, for people. Server-rendered, one small module for each page.

Each page calls the endpoint functions of `api`, so that a page and a dashboard can never disagree. Whatever lives is
asked for again by htmx every two seconds, with the entity tag of what is shown; without scripts the pages still work.
"""
