"""`ddpgen report`: a run as one page, from the files of its checkpoint directory.

    history.py   metrics.jsonl, manifest.json, status → the run's history   (standard library)
    plots.py     its curves as SVG                                          (matplotlib)
    page.py      all of it as one HTML file                                 (standard library)
    command.py   the command

Owns the content of the page. Runs during or after a training, only reads, and imports no torch.
"""
