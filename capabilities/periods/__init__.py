"""Parser for time expressions, used by ``time_range_parsing``.

``scanner`` finds the expressions in a text. ``parser`` combines them into periods, with words such
as "between", "since", and "and".
"""
