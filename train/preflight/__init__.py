"""Preflight: before torch starts, every host checks itself and checks in, and each fault is named.

    settings.py  the launch, as the supervisor describes it     (plain values)
    finding.py   one named fault, its code, the table of all    (plain values)
    report.py    the values that the hosts send each other      (plain values)
    checks.py    the checks of one host by itself               (network.py, directory.py, gpus.py, limits.py;
                                                                 facts.py: values for compare.py; ports.py: the
                                                                 process that holds a port)
    compare.py   the checks that need all reports               (link_findings.py: of the links; pure)
    phrases.py   a host, a list, the findings for people        (pure)
    checkin.py   check-in, waiting, verdict: one TCP exchange   (links.py: the probes between hosts)
    command.py   the whole check

Standard library only: it runs before, and without, torch. Knows nothing of models or steps.
"""
