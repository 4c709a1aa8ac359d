"""Translate documents such as Word files, HTML and subtitles: only their text changes, not structure and markup."""
