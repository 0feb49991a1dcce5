"""What each section of a report shows, as plain dataclasses: one file per section. None where there is
nothing to show.
"""
