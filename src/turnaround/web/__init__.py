"""The guard of every server of turnaround. Enters: an application. Leaves: answers to those who may ask.

    guard.py     who may ask, and what every answer carries: Host, Origin, methods, token, headers
    tokens.py    a token that survives a restart
    pages.py     the style that all pages share, and a refusal as a page where a browser asks
    sockets.py   where a server listens, how many may come, how long they may take

Nothing here knows what is served: `turnaround serve` and `turnaround watch` give their routes and rules.
"""
