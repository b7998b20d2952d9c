"""Log lines, metrics and reports of processes, and the redaction of secrets in what is stored."""
