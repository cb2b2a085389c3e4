"""`ragstone eval`: a user's own questions put to a running server over HTTP, measured, reported and compared.

`cases` reads the questions, `asking` puts them, `scoring` measures the replies, `running` makes a run of it and writes
it, `comparison` sets two runs side by side; `text_report` and `html_report` show either. `records` holds the values.
"""
