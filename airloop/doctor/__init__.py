"""The doctor: checks that say, before the first GPU hour, whether a run can learn, and why not.

A check is a plain function in one of the files of checks/, one file per family of failures, registered with the ids
it answers (`base.check`). Other packages add theirs through the entry-point group "airloop.checks".
"""
