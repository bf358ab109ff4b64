"""The page while runs train: `turnaround watch`. No torch.

Enters: a folder of runs. Leaves: the page, and pushed to it the blocks that have changed.

    progress.py   where a run stands now: how far, how fast, how long still, what goes wrong
    now.py        the same as blocks of the page
    page_builder.py    makes the blocks: the quick ones every second, the page when there is time
    hub.py        what the page holds now, and who must still hear of it
    server.py     the page and its stream of events over HTTP
    view.py       a survey as the live page tells it, with forecasts made when a run has ended
    address.py    where the page is, and how a person reaches it
"""
