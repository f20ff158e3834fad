"""A run as a report: report.md and report.html, and the plot in both.

content.py      what a report says, as data; pure
plot.py         each agent's cache state over the phases, as SVG, by matplotlib
rendering.py    the content as Markdown and as HTML; all that agents said is escaped
report.*.j2     the templates of both
write.py        the files
"""
