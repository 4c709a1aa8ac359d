"""Translation of documents: only their text is translated, and their structure and markup stay the same."""
