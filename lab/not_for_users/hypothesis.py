"""Stands before hypothesis on the path of every box and command that tests start: kio looks for it at its import, which costs half a second (it brings pytest
and trio along), and an installed Millrace has no hypothesis."""

raise ImportError("there is no hypothesis where Millrace runs")
