"""Pictures of views as inline SVG. Every picture is drawn for a width in pixels, so that its text is as large
on a phone as on a desk; colours come from the page, which knows light from dark.
"""

WIDE, NARROW = 920, 358
