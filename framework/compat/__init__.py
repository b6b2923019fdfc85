"""Names of other systems, for code that was written against them: thin views on what is here.

Nothing of ours imports these.
"""
