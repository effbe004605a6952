"""The configuration file: one YAML document, checked completely, reloaded while running.

`document.py` turns text into the core's topology and policy or into a list of every problem in it;
`schema.py` says what may be written; `setting_table.py` is the table of process settings; `watch.py`
reports changes of the file. Thresholds have their defaults in `xds_server.core.policy` alone.
"""
