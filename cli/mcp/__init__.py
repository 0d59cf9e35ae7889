"""`kernelwright mcp`: the service as tools of a coding agent, over the Model Context Protocol (docs/mcp.md).

    command.py      the command: stdio, or HTTP on loopback
    server.py       which tools, resources and prompts there are, and what each does to the world
    jobs.py         submit, jobs, status, best, candidates, cancel
    asking.py       ask and tell: the agent is the model
    lookup.py       problems, leaderboard, search
    judging.py      evaluate and admit: by the judge on this machine, or by the service
    local_judge.py  the judge of this machine, in a process of its own
    reading.py      resources and prompts
    results.py      what the tools answer
    words.py        foreign text between fences, long text cut with a note
    session.py      the client behind the tools, and how a refusal reads

What candidates, models and compilers wrote comes between fences and is called untrusted: an agent that reads it may do
things on its user's machine. Nothing is printed to stdout, which belongs to the protocol.
"""
