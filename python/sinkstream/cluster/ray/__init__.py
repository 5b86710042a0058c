"""The server as a deployment of Ray Serve."""
