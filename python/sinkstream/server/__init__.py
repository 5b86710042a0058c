"""`sinkstream serve`: OpenAI's API over HTTP. Needs the extra `serve`; nothing else imports it."""
