"""The Responses API. Imported by the server only; see README.md."""
