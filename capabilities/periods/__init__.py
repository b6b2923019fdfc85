"""From words about time to periods: what ``time_range_parsing`` is made of.

``scan`` finds the expressions in a text, ``connect`` reads how they hang together ("between",
"since", "and"), ``parse`` puts both into one result.
"""
