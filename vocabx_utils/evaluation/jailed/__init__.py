"""Code that runs inside the jail, beside the candidate: standard library only, nothing of the package.

The folder is bound read-only into the jail as the top-level package ``jailed``.
"""
