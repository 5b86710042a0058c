"""What a session's next turn adds to its cache."""
