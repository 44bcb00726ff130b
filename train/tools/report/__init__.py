"""`ddpgen report`: a run as one page, from the files of its checkpoint directory.

    history.py   metrics.jsonl, manifest.json, status → what happened   (standard library)
    plots.py     its curves as SVG                                      (matplotlib)
    page.py      all of it as one HTML file                             (standard library)
    command.py   the command

Owns what the page shows. Runs beside or after a training, reads only, and imports no torch.
"""
