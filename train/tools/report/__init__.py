"""`ddpgen report`: a run as one page, from the files of its checkpoint directory; a sweep as one page of its points.

    history.py   metrics.jsonl, manifest.json, status → the run's history   (standard library)
    plots.py     the curves of a history as SVG                             (matplotlib)
    page.py      the history as one HTML file                               (standard library)
    sweep.py     the points of a sweep: their order, and their common page  (standard library)
    command.py   the command

Owns the content of the pages. Runs during or after a training, only reads, and imports no torch.
"""
